"""From a config and an RL setup to a stage with its sampler, engines and environments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax

from zaya_jax.config import ModelConfig
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.rl.curriculum.scheduler import OnlineScheduler
from zaya_jax.rl.engine_sampler import EngineSampler
from zaya_jax.rl.group_maker import GroupMaker
from zaya_jax.rl.learner import Learner
from zaya_jax.rl.pipeline import PipelineStage, WorkerPlace
from zaya_jax.rl.prompts import PromptCodec
from zaya_jax.rl.ray_engine import RayEngine
from zaya_jax.rl.rollout_worker import RolloutEngine
from zaya_jax.rl.sampler import ForwardSampler
from zaya_jax.rl.setup import RLSetup
from zaya_jax.rl.stage import Stage
from zaya_jax.rl.trainer import PolicyTrainer
from zaya_jax.training.settings import RunConfig

AnyStage = Stage | PipelineStage


def make_stage(
    config: RunConfig,
    setup: RLSetup,
    trainer: PolicyTrainer,
    variables: dict[str, Any],
    tokenizer: Tokenizer,
) -> AnyStage:
    """The stage with samplers that hold the given weights."""
    codec = PromptCodec(tokenizer, setup.stage.prompt)
    environments = setup.environments()
    starts = {
        environment.name: (setup.difficulty, _lower(setup.hardest, environment.hardest))
        for environment in environments
    }
    rules = dataclasses.replace(setup.stage, seed=config.train.seed)
    maker = GroupMaker(
        rules,
        environments,
        OnlineScheduler(starts, config.train.seed, shares=setup.shares),
        encode=codec.encode,
        decode=codec.decode,
        held_out=setup.held_out(),
    )
    learner = Learner(rules, trainer)
    model = config.model
    if setup.sampler_dtype is not None:
        model = model.replace(activation_dtype=setup.sampler_dtype)
    if setup.engine is None:
        sampler = ForwardSampler(
            model,
            variables,
            stop_token=codec.stop_token,
            most_prompt_tokens=setup.most_prompt_tokens,
            most_tokens=setup.most_response_tokens,
        )
        return Stage(maker, learner, sampler)

    make_engine = functools.partial(
        engine_sampler,
        model,
        setup.engine,
        stop_token=codec.stop_token,
        most_tokens=setup.most_response_tokens,
    )
    if setup.pipeline is None:
        return Stage(maker, learner, make_engine(variables))
    engines: list[RolloutEngine]
    workers = range(setup.pipeline.workers)
    if setup.pipeline.place is WorkerPlace.RAY:
        make = functools.partial(make_engine, jax.device_get(variables))
        engines = [RayEngine(make, setup.pipeline.resources) for _ in workers]
        return PipelineStage(setup.pipeline, maker, learner, engines, make_engine(variables))
    split = setup.split(jax.devices())
    places = [None] * len(workers) if split is None else list(split.workers)
    engines = [make_engine(variables, devices=devices) for devices in places]
    sampler_to_measure = make_engine(variables, devices=places[0])
    return PipelineStage(setup.pipeline, maker, learner, engines, sampler_to_measure)


def engine_sampler(
    model: ModelConfig,
    settings: EngineSettings,
    variables: dict[str, Any],
    *,
    stop_token: int,
    most_tokens: int,
    devices: Sequence[jax.Device] | None = None,
) -> EngineSampler:
    """A new engine with these weights, on the first device or on those given."""
    engine = Engine(model, variables, settings=settings, devices=devices)
    return EngineSampler(engine, stop_token=stop_token, most_tokens=most_tokens)


def _lower(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
