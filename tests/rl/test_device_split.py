"""Workers on devices of their own: nothing of one side lies on the other's, weights move over."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import pytest

from experiments.rl_stage import make_stage
from experiments.rl_start import first_variables, trainer_placement
from tests.rl.test_command import tiny
from zaya_jax.config import ConfigError
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.rl.device_split import split_devices
from zaya_jax.rl.engine_sampler import EngineSampler
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.pipeline import PipelineConfig, PipelineStage, WorkerPlace
from zaya_jax.rl.trainer import PolicyTrainer


def test_the_last_devices_are_the_workers() -> None:
    split = split_devices(jax.devices(), workers=2, devices_of_a_worker=3)
    assert split.trainer == tuple(jax.devices()[:2])
    assert split.workers == (tuple(jax.devices()[2:5]), tuple(jax.devices()[5:]))


def test_a_trainer_without_a_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves none of 8 to the trainer"):
        split_devices(jax.devices(), workers=8, devices_of_a_worker=1)
    with pytest.raises(RLError, match="own_devices is for threads; place=ray"):
        PipelineConfig(own_devices=True, place=WorkerPlace.RAY)


def devices_of(tree: Any) -> set[jax.Device]:
    return {device for leaf in jax.tree.leaves(tree) for device in leaf.devices()}


@pytest.mark.slow
def test_a_pipeline_trains_on_devices_that_its_engines_never_touch() -> None:
    config, setup = tiny(3, "pipeline")
    config = dataclasses.replace(config, mesh=MeshConfig(data=-1))
    assert setup.pipeline is not None
    setup = dataclasses.replace(
        setup,
        stage=dataclasses.replace(setup.stage, rows_per_microbatch=6),
        pipeline=dataclasses.replace(
            setup.pipeline, own_devices=True, workers=2, updates_per_sync=1, most_updates_behind=1
        ),
    )
    placement = trainer_placement(config, setup)
    trainer = PolicyTrainer(config.model, config.optimizer, setup.loss, 3, placement)
    state = trainer.init(first_variables(config))
    stage = make_stage(config, setup, trainer, state.variables, load_tokenizer("bytes"))
    assert isinstance(stage, PipelineStage)
    try:
        state, first = stage.step(state)
        for _ in range(2):
            state, metrics = stage.step(state)
        engines = [worker._engine for worker in stage.workers]
        found = [one.devices for one in engines if isinstance(one, EngineSampler)]
        assert found == [{jax.devices()[6]}, {jax.devices()[7]}]
        assert devices_of(state) == set(jax.devices()[:6])
        assert first["ratio_max"] == pytest.approx(1, abs=1e-4)
        # Groups of this age only exist where an engine holds weights of a later update.
        assert all(group.started >= 1 for group in stage.last_groups)
        assert metrics["workers_running"] == 2
    finally:
        stage.close()
