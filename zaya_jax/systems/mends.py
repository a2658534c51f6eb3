"""What to change in a run whose mesh does not fit into its devices' memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from zaya_jax.config import ConfigError, RematPolicy
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.systems.hardware import Hardware
from zaya_jax.systems.mesh_search import Candidate, candidates
from zaya_jax.training.settings import RunConfig

_MOST_DEVICES = 64  # times as many; beyond them another setting is at fault


_REMAT = "--config.model.remat="
_OFFLOAD = "--config.optimizer.offload_state=True"


class Change(NamedTuple):
    """A run that may fit: what to give the command, and what that makes of it."""

    words: str
    config: RunConfig
    devices: int


@dataclasses.dataclass(frozen=True)
class Shortage:
    """By how much the best mesh does not fit.

    Attributes:
      needed_bytes: of one device.
      room_bytes: of one device, that a plan may fill.
      changes: options of the command, each of which would make it fit.
    """

    needed_bytes: int
    room_bytes: int
    changes: list[str]


def find_shortage(
    config: RunConfig, devices: int, hardware: Hardware, best: Candidate
) -> Shortage | None:
    """None where `best`, the first of the candidates, fits."""
    if best.fits:
        return None
    one = _that_fit(_settings(config, devices), hardware)
    settings = one or _that_fit(_settings_together(config, devices), hardware)
    more = _that_fit([_more_devices(config, devices)], hardware)
    return Shortage(best.memory.total, hardware.room_bytes, [*settings, *more])


def _that_fit(ways: Iterable[Iterable[Change]], hardware: Hardware) -> list[str]:
    """Of every way its mildest form that fits, in words."""
    found = (_first_that_fits(forms, hardware) for forms in ways)
    return [words for words in found if words]


def _first_that_fits(forms: Iterable[Change], hardware: Hardware) -> str:
    for change in forms:
        try:
            if candidates(change.config, change.devices, hardware, 1)[0].fits:
                return change.words
        except ConfigError:  # no mesh divides it
            continue
    return ""


def _settings(config: RunConfig, devices: int) -> Iterator[Iterable[Change]]:
    """Single settings that need less, the mildest form of each first."""
    remat = config.model.remat
    policies = [] if remat.repeats_layers else [RematPolicy.FULL]
    policies += [] if remat is RematPolicy.OFFLOAD else [RematPolicy.OFFLOAD]
    yield (Change(_REMAT + policy, _with_remat(config, policy), devices) for policy in policies)
    if not config.optimizer.offload_state:
        yield [Change(_OFFLOAD, _with_offload(config), devices)]
    yield _more_microbatches(config, devices, "")


def _settings_together(config: RunConfig, devices: int) -> Iterator[Iterable[Change]]:
    saving = _with_offload(_with_remat(config, RematPolicy.OFFLOAD))
    words = f"{_REMAT}{RematPolicy.OFFLOAD} {_OFFLOAD}"
    yield [Change(words, saving, devices), *_more_microbatches(saving, devices, f"{words} ")]


def _with_remat(config: RunConfig, policy: RematPolicy) -> RunConfig:
    return dataclasses.replace(config, model=config.model.replace(remat=policy))


def _with_offload(config: RunConfig) -> RunConfig:
    optimizer = dataclasses.replace(config.optimizer, offload_state=True)
    return dataclasses.replace(config, optimizer=optimizer)


def _more_microbatches(config: RunConfig, devices: int, before: str) -> Iterator[Change]:
    parts = 2 * config.train.microbatches
    while config.data.batch_size % parts == 0:
        train = dataclasses.replace(config.train, microbatches=parts)
        changed = dataclasses.replace(config, train=train)
        yield Change(f"{before}--config.train.microbatches={parts}", changed, devices)
        parts *= 2


def _more_devices(config: RunConfig, devices: int) -> Iterator[Change]:
    free = dataclasses.replace(config, mesh=MeshConfig())
    asked = ""
    if config.mesh != MeshConfig():
        asked = " without --config.mesh"
        yield Change("no --config.mesh: the plan then looks for the best", free, devices)
    times = 2
    while times <= _MOST_DEVICES:
        yield Change(f"--devices={times * devices}{asked}", free, times * devices)
        times *= 2
