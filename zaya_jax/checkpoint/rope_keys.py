"""Rotary position settings out of a released config.json, in every form that was ever written.

    nested   rope_parameters: {"hybrid": {"rope_theta": …}, "hybrid_sliding": {…}}, perhaps with a
             stray "rope_type" beside the two
    flat     rope_parameters: {"rope_type": …, "rope_theta": …}
    keys     rope_theta and partial_rotary_factor at the top of the file

Bases given in several places must agree: the reference implementation silently takes one of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from zaya_jax.checkpoint.config_keys import ConfigKeys, finite_number

FULL, SLIDING = "hybrid", "hybrid_sliding"
_UNSCALED = ("default", "linear")  # types that are plain RoPE, the second with factor 1 only


@dataclasses.dataclass(frozen=True)
class Rope:
    """Bases of the two kinds of layers, None where the file gives none, and the rotary share."""

    theta: float | None
    sliding_theta: float | None
    fraction: float


def read_rope(keys: ConfigKeys) -> Rope:
    """Reads all the places that may hold rotary settings.

    Raises:
      ConfigError: for an unknown type or key, a missing base, and places that disagree.
    """
    scaling = keys.raw("rope_scaling")
    scaling = {} if scaling is None or scaling is False else scaling  # both were written for "none"
    _check_type(keys, "rope_scaling", scaling)
    parameters = keys.raw("rope_parameters")
    parameters = {} if parameters is None else parameters
    if not isinstance(parameters, dict):
        raise keys.error("rope_parameters", "must be an object, or null")
    kinds = (FULL, SLIDING)
    nested = {kind: parameters[kind] for kind in kinds if parameters.get(kind) is not None}
    for kind, entry in nested.items():
        _check_type(keys, f"rope_parameters of {kind!r}", entry)
    flat = {key: value for key, value in parameters.items() if key not in kinds}
    _check_type(keys, "rope_parameters", flat)

    theta = _agreed(
        keys,
        "rope_theta",
        (
            *(_number(keys, place, "rope_theta") for place in (nested.get(FULL, {}), flat)),
            keys.number("rope_theta", None),
            _number(keys, scaling, "rope_theta", "rope_scaling"),
        ),
    )
    sliding = (
        _number(keys, nested.get(SLIDING, {}), "rope_theta"),
        keys.number("swa_rotary_base", None),
    )
    sliding_theta = _agreed(keys, "rope_theta of sliding layers", sliding)
    fraction = _agreed(
        keys,
        "partial_rotary_factor",
        (
            keys.number("partial_rotary_factor", None),
            _number(keys, scaling, "partial_rotary_factor", "rope_scaling"),
            *(_number(keys, entry, "partial_rotary_factor") for entry in (flat, *nested.values())),
        ),
    )
    return Rope(theta, sliding_theta, 0.5 if fraction is None else fraction)


def _check_type(keys: ConfigKeys, place: str, entry: Any) -> None:
    name = place.split(" ")[0]
    if not isinstance(entry, dict):
        raise keys.error(name, f"{place} must be an object, or null")
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor"}
    unknown = sorted(set(entry) - known)
    if unknown:
        raise keys.error(name, f"{place} has the unknown key {unknown[0]!r}")
    for key in ("rope_type", "type"):
        kind = entry.get(key, "default")
        if kind not in _UNSCALED:
            raise keys.error(
                name, f"{key} {kind!r} is unknown; only plain RoPE ('default') is read"
            )
    factor = entry.get("factor")
    if factor is not None and finite_number(factor) != 1.0:
        raise keys.error(name, f"factor {factor!r}: scaled RoPE is not supported, only 1.0")


def _number(
    keys: ConfigKeys, entry: dict[str, Any], key: str, place: str = "rope_parameters"
) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    number = finite_number(value)
    if number is None:
        raise keys.error(place, f"{key} must be a number, and finite")
    return number


def _agreed(keys: ConfigKeys, what: str, values: tuple[float | None, ...]) -> float | None:
    """The one value that several places give."""
    given = sorted({value for value in values if value is not None})
    if len(given) > 1:
        listed = " and ".join(f"{value:g}" for value in given)
        raise keys.error(
            "rope_parameters",
            f"{what} is given as {listed} in different places of the file; keep the right one",
        )
    return given[0] if given else None
