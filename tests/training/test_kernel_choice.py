"""Kernels that cannot run here are refused by the field that asks for them."""

from __future__ import annotations

import pytest

from kernels_pallas.backend import Target, compile_for
from zaya_jax.config import ConfigError, Kernels
from zaya_jax.training.kernel_choice import check_kernels


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
