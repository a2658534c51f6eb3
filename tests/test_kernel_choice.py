"""Kernels that cannot run here are refused by the field that asks for them."""

from __future__ import annotations

import pytest

from kernels_pallas.backend import Target, compile_for
from zaya_jax.config import ConfigError, Kernels
from zaya_jax.kernel_choice import check_kernels
from zaya_jax.optimizer.create import create_optimizer
from zaya_jax.optimizer.settings import OptimizerConfig, OptimizerKind


def test_insisting_on_kernels_without_a_gpu_names_the_field() -> None:
    with pytest.raises(ConfigError) as refused:
        check_kernels("config.model.kernels", Kernels.PALLAS)
    assert str(refused.value) == (
        "config.model.kernels: 'pallas' needs a GPU, the default backend is 'cpu'; "
        "use 'xla' or 'auto'"
    )


def test_other_choices_and_other_targets_are_taken() -> None:
    for kernels in (Kernels.AUTO, Kernels.XLA):
        check_kernels("config.model.kernels", kernels)
    with compile_for(Target("mi300x")):
        check_kernels("config.model.kernels", Kernels.PALLAS)


def test_muon_by_kernels_without_a_gpu_names_its_field() -> None:
    settings = OptimizerConfig(kind=OptimizerKind.MUON, muon_kernels=Kernels.PALLAS)
    with pytest.raises(
        ConfigError, match=r"^config\.optimizer\.muon_kernels: 'pallas' needs a GPU"
    ):
        create_optimizer(settings, total_steps=200)
    # AdamW asks for none.
    create_optimizer(OptimizerConfig(muon_kernels=Kernels.PALLAS), total_steps=200)
