"""Collectives of a compiled program: who exchanges how much with whom, loops unrolled.

Reads the text of an optimised HLO module. A loop's body counts as often as its known trip count
says. Devices lie on the mesh row by row, the last axis fastest.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

_ITEM_BYTES = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "f64": 8, "pred": 1, "s8": 1}
_ITEM_BYTES |= {"u8": 1, "s16": 2, "u16": 2, "s64": 8, "u64": 8}
_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_OPERATION = re.compile(rf"= (.*?) ({'|'.join(_KINDS)})(-start)?\(")
_NAME = re.compile(r"^ *(?:ROOT )?(%[\w.\-]+) =")
_WAITS = re.compile(r"-done\((%[\w.\-]+)")
# What takes long on a GPU: products, kernels of ours or of a library, loops.
_WORK = re.compile(r" (?:dot|while|custom-call)\(|kind=kCustom")
_CALLS = re.compile(r"(?:body|to_apply|calls|branch_computations)=\{?((?:%[\w.\-]+(?:, )?)+)\}?")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_HEAD = re.compile(r"^(ENTRY )?(%[\w.\-]+) .*\{$")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One kind of exchange over one set of mesh axes, summed over the program."""

    kind: str
    axes: tuple[str, ...]  # empty: the group could not be told from the text
    count: int
    bytes_sent: float  # by one device, as rings send them


def collectives(program: str, mesh: Mapping[str, int]) -> list[Collective]:
    """All exchanges of a program between at least two devices, largest first."""
    totals: dict[tuple[str, tuple[str, ...]], tuple[int, float]] = {}
    for one in _exchanges(program, mesh):
        count, size = totals.get((one.kind, one.axes), (0, 0.0))
        totals[one.kind, one.axes] = (count + one.times, size + one.bytes_sent)
    found = [Collective(*key, *value) for key, value in totals.items()]
    return sorted(found, key=lambda one: -one.bytes_sent)


def hidden_share(program: str, mesh: Mapping[str, int]) -> float:
    """Share of the bytes sent that travel while the device has other work.

    An exchange is hidden when its start and its end stand apart in the schedule, with a product, a
    kernel or a loop between them. 0 for a program without asynchronous exchanges.
    """
    hidden: set[str] = set()
    bodies, _ = computations(program)
    for lines in bodies.values():
        hidden |= _hidden_starts(lines)
    sent = {True: 0.0, False: 0.0}
    for one in _exchanges(program, mesh):
        sent[one.name in hidden] += one.bytes_sent
    return sent[True] / max(sum(sent.values()), 1.0)


def _hidden_starts(lines: Sequence[str]) -> set[str]:
    """Names of the asynchronous operations of a computation that end after other work."""
    waiting: dict[str, bool] = {}  # started, not ended: whether work came since
    hidden = set()
    for line in lines:
        if ended := _WAITS.search(line):
            if waiting.pop(ended.group(1), False):
                hidden.add(ended.group(1))
        elif "-start(" in line:
            if name := _NAME.match(line):
                waiting[name.group(1)] = False
        elif _WORK.search(line):
            waiting = dict.fromkeys(waiting, True)
    return hidden


class _Exchange(NamedTuple):
    """One line of the program: what it sends, as often as it runs."""

    name: str
    kind: str
    axes: tuple[str, ...]
    times: int
    bytes_sent: float


def _exchanges(program: str, mesh: Mapping[str, int]) -> Iterator[_Exchange]:
    bodies, entry = computations(program)
    for line, times in _executed(bodies, entry, 1):
        match = _OPERATION.search(line)
        if match is None:
            continue
        shape, kind, starts = match.groups()
        axes, members = group_of(line, kind, mesh)
        if members > 1:
            if starts and kind != "all-reduce":
                shape = _results_of_start(shape)
            name = _NAME.match(line)
            sent = times * _ring_bytes(kind, _shape_bytes(shape), members)
            yield _Exchange(name.group(1) if name else "", kind, axes, times, sent)


def _results_of_start(shape: str) -> str:
    """The second part of `(operands, results, ...)`; either may be a tuple itself."""
    depth, parts, begin = 0, [], 1
    for place, letter in enumerate(shape):
        depth += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depth == 1) or depth == 0:
            parts.append(shape[begin:place])
            begin = place + 1
        if depth == 0:
            break
    return parts[1] if len(parts) > 1 else shape


def computations(program: str) -> tuple[dict[str, list[str]], str]:
    """The lines of every computation by name, and the name of the entry."""
    bodies: dict[str, list[str]] = {}
    entry, current = "", ""
    for line in program.splitlines():
        head = _HEAD.match(line)
        if head:
            current = head.group(2)
            bodies[current] = []
            entry = current if head.group(1) else entry
        elif current:
            bodies[current].append(line)
    return bodies, entry


def _executed(bodies: dict[str, list[str]], name: str, times: int) -> Iterator[tuple[str, int]]:
    """Lines with an exchange, and how often each runs. Loops of unknown length count once."""
    for line in bodies.get(name, []):
        if any(kind in line for kind in _KINDS):
            yield line, times
        trips = _TRIPS.search(line)
        for group in _CALLS.findall(line):
            for called in group.split(", "):
                yield from _executed(bodies, called, times * (int(trips.group(1)) if trips else 1))


def _shape_bytes(shape: str) -> int:
    """Of a result, or of all members of a tuple of results."""
    return sum(
        _ITEM_BYTES.get(kind, 4) * math.prod(int(n) for n in sizes.split(",") if n)
        for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shape)
    )


def _ring_bytes(kind: str, result: int, members: int) -> float:
    share = (members - 1) / members
    if kind == "all-reduce":
        return 2 * share * result
    if kind == "reduce-scatter":  # the result is one part
        return (members - 1) * result
    return result if kind == "collective-permute" else share * result


def group_of(line: str, kind: str, mesh: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
    """The mesh axes that a group spans, and how many devices it has."""
    sizes = tuple(mesh.values())
    if kind == "collective-permute":
        pairs = re.findall(r"\{(\d+),(\d+)\}", line.partition("source_target_pairs=")[2])
        moves = [pair for pair in pairs if pair[0] != pair[1]]
        devices = [int(device) for device in moves[0]] if moves else []
    else:
        devices = _first_group(line.partition("replica_groups=")[2], math.prod(sizes))
    if len(devices) < 2:
        return (), len(devices)
    places = np.array(np.unravel_index(devices, sizes))  # [axes, members]
    varies = (places != places[:, :1]).any(axis=1)
    return tuple(axis for axis, moves in zip(mesh, varies, strict=True) if moves), len(devices)


def _first_group(text: str, devices: int) -> list[int]:
    """Members of the first group, from any of the forms in which HLO writes groups."""
    if explicit := re.match(r"\{\{([\d,]+)\}", text):
        return [int(device) for device in explicit.group(1).split(",")]
    if re.match(r"\{\}", text):
        return list(range(devices))
    if iota := re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, source, order = (
            [int(n) for n in part.split(",")] if part else [] for part in iota.groups()
        )
        ids = np.arange(math.prod(source)).reshape(source)
        return (ids.transpose(order) if order else ids).reshape(shape)[0].tolist()
    if named := re.match(
        r"mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}", text
    ):
        sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", named.group(1))}
        tile, order = (
            [int(n) for n in part.split(",")] if part else [] for part in named.group(2, 3)
        )
        ids = np.arange(math.prod(sizes.values())).reshape(tile or [-1])
        ids = (ids.transpose(order) if order else ids).reshape(tuple(sizes.values()))
        used = re.findall(r"'(\w+)'", named.group(4))
        first = tuple(slice(None) if name in used else 0 for name in sizes)
        return ids[first].reshape(-1).tolist()
    raise ValueError(f"cannot read the groups of a collective: {text[:80]!r}")
