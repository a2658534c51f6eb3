"""From a config and an RL setup to a stage with its sampler, engines and environments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
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
from zaya_jax.rl.pipeline import PipelineConfig, PipelineStage, WorkerPlace
from zaya_jax.rl.prompts import PromptCodec, PromptStyle
from zaya_jax.rl.ray_engine import ray_engines
from zaya_jax.rl.rollout_worker import RolloutEngine
from zaya_jax.rl.sampler import ForwardSampler, Sampler
from zaya_jax.rl.scoring import Scorer
from zaya_jax.rl.server_engine import ServerEngine
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
    stop, most = codec.stop_token, setup.most_response_tokens
    if setup.pipeline is None:
        return Stage(maker, learner, make_sampler(config, setup, variables, stop, most))
    engines, sampler = _pipeline_engines(config, setup, setup.pipeline, variables, stop)
    return PipelineStage(setup.pipeline, maker, learner, engines, sampler)


def make_sampler(
    config: RunConfig, setup: RLSetup, variables: dict[str, Any], stop_token: int, most_tokens: int
) -> Sampler:
    """What the setup samples with: an engine, or the whole model for every token."""
    if setup.engine is None:
        return ForwardSampler(
            sampler_model(config, setup),
            variables,
            stop_token=stop_token,
            most_prompt_tokens=setup.most_prompt_tokens,
            most_tokens=most_tokens,
        )
    model = sampler_model(config, setup)
    return engine_sampler(
        model, setup.engine, variables, stop_token=stop_token, most_tokens=most_tokens
    )


def sampler_model(config: RunConfig, setup: RLSetup) -> ModelConfig:
    """The model as samplers run it."""
    if setup.sampler_dtype is None:
        return config.model
    return config.model.replace(activation_dtype=setup.sampler_dtype)


def _pipeline_engines(
    config: RunConfig,
    setup: RLSetup,
    pipeline: PipelineConfig,
    variables: dict[str, Any],
    stop_token: int,
) -> tuple[list[RolloutEngine], EngineSampler]:
    """An engine for each worker, and one to measure with."""
    assert setup.engine is not None  # the setup has seen to it
    make = functools.partial(
        engine_sampler,
        sampler_model(config, setup),
        setup.engine,
        stop_token=stop_token,
        most_tokens=setup.most_response_tokens,
    )
    workers = range(pipeline.workers)
    if pipeline.place is WorkerPlace.RAY:
        there = functools.partial(make, jax.device_get(variables))
        scorer = functools.partial(make_scorer, setup) if pipeline.score_in_actors else None
        actors = ray_engines(pipeline.workers, there, pipeline.resources, scorer)
        return actors, make(variables)
    if pipeline.place is WorkerPlace.SERVER:
        servers: list[RolloutEngine] = [
            ServerEngine(
                url,
                config.model,
                Path(pipeline.exports) / f"worker-{worker}",
                stop_token=stop_token,
                most_tokens=setup.most_response_tokens,
            )
            for worker, url in enumerate(pipeline.servers)
        ]
        return servers, make(variables)
    split = setup.split(jax.devices())
    places = [None if split is None else split.workers[worker] for worker in workers]
    engines: list[RolloutEngine] = [make(variables, devices=devices) for devices in places]
    return engines, make(variables, devices=places[0])


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


def make_scorer(setup: RLSetup) -> Scorer:
    """What scores responses to the problems that are learnt from."""
    thinks = setup.stage.prompt is PromptStyle.THINKING
    return Scorer(setup.environments(), has_thinking=thinks)


def _lower(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
