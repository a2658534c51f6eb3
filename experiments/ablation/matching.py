"""Models of equal size: one dimension of an arm is moved until a count is that of the baseline."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from experiments.ablation.grid import Grid, Match, changed
from zaya_jax.config import ConfigError, ModelConfig
from zaya_jax.model_size import (
    active_parameter_count,
    cached_numbers_per_token,
    flops_per_token,
    parameter_count,
)
from zaya_jax.training.settings import RunConfig

_CACHE_BYTES = 2  # of one cached number, in bfloat16
_LARGEST = 1 << 16
_TOLERANCE = 0.02  # largest relative difference that counts as matched


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a model costs."""

    parameters: int
    active_parameters: int  # without the embedding
    flops_per_token: float  # forward, at the run's sequence length
    cache_bytes_per_token: int  # keys and values of all layers in bfloat16


@dataclasses.dataclass(frozen=True)
class MatchedArm:
    """An arm's run as it will be made."""

    name: str
    config: RunConfig
    sizes: Sizes
    adjusted: str  # what matching changed, for people; "" where nothing


def sizes_of(model: ModelConfig, sequence_length: int) -> Sizes:
    """The sizes of a model in a run."""
    return Sizes(
        parameters=parameter_count(model),
        active_parameters=active_parameter_count(model),
        flops_per_token=flops_per_token(model, sequence_length),
        cache_bytes_per_token=_CACHE_BYTES * model.num_layers * cached_numbers_per_token(model),
    )


def matched_arms(grid: Grid, base: RunConfig) -> list[MatchedArm]:
    """Every arm, its model matched to the baseline's.

    Raises:
      ConfigError: when a change is impossible, or no value of the dimension comes within 2%.
    """
    runs = {arm.name: changed(base, arm.changes) for arm in grid.arms}
    reference = runs[grid.baseline].model
    length = base.data.sequence_length
    arms = []
    for name, run in runs.items():
        model, adjusted = run.model, ""
        if grid.match is not Match.NONE and model != reference:
            count = _count(grid.match, length)
            model = match_model(model, count(reference), count, grid.adjust, name)
            adjusted = f"{grid.adjust} {getattr(run.model, grid.adjust)} -> "
            adjusted += str(getattr(model, grid.adjust))
        config = dataclasses.replace(run, model=model)
        arms.append(MatchedArm(name, config, sizes_of(model, length), adjusted))
    return arms


def match_model(
    model: ModelConfig,
    target: float,
    count: Callable[[ModelConfig], float],
    field: str,
    arm: str,
) -> ModelConfig:
    """The model with the value of `field` that brings `count` nearest to `target`.

    Args:
      model: to be changed.
      target: the count aimed at.
      count: grows with the field.
      field: an integer of the model.
      arm: for the message.

    Raises:
      ConfigError: when even the best value is more than 2% off.
    """

    def at(value: int) -> float:
        return count(model.replace(**{field: value}))

    low, high = 1, _LARGEST  # the least value at or above the target is in (low, high]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) < target else (low, middle)
    best = min((low, high), key=lambda value: abs(at(value) - target))
    difference = at(best) / target - 1
    if abs(difference) > _TOLERANCE:
        raise ConfigError(
            f"arm {arm!r}: no {field} matches the baseline; the best, {best}, is "
            f"{difference:+.1%} off. Adjust another field, or change the arm"
        )
    return model.replace(**{field: best})


def size_table(arms: Sequence[MatchedArm], baseline: str) -> list[str]:
    """Markdown rows of every arm's sizes, the differences from the baseline in brackets."""
    reference = next(arm.sizes for arm in arms if arm.name == baseline)
    lines = [
        "| arm | parameters | active | forward FLOPs/token | KV cache, bytes/token | adjusted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for arm in arms:
        cells = [
            f"{getattr(arm.sizes, field.name):,.0f}"
            f" ({getattr(arm.sizes, field.name) / getattr(reference, field.name) - 1:+.1%})"
            for field in dataclasses.fields(Sizes)
        ]
        lines.append(f"| {arm.name} | {' | '.join(cells)} | {arm.adjusted or '-'} |")
    return lines


def _count(match: Match, sequence_length: int) -> Callable[[ModelConfig], float]:
    if match is Match.PARAMETERS:
        return parameter_count
    return lambda model: flops_per_token(model, sequence_length)
