"""Rollouts of a batch, packed into rows of one length for the trainer.

A sequence of prompt and response x_0 .. x_n is fed as tokens x_0 .. x_{n-1} with targets
x_1 .. x_n; position j predicts x_{j+1}, so that the engine's log-probability of a response token
stands where it is predicted, and route row j where token j is fed. Whole sequences go to the row
with the least sufficient room, longest first. Rows are cut into microbatches of a token budget;
a last one is filled up with empty rows, so that all have one shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.errors import RLError
from zaya_jax.rl.records import Rollout
from zaya_jax.rl.replay import ROUTE_LIVE, place_routes

Rows = dict[str, np.ndarray]


def pack_rollouts(
    rollouts: Sequence[Rollout],
    advantages: Float[np.ndarray, " sequences"],
    token_weights: Float[np.ndarray, " sequences"],
    *,
    row_length: int,
    rows_per_microbatch: int,
    layers: int,
    num_experts: int,
    replay: bool,
) -> list[Rows]:
    """Microbatches of [rows, row_length] arrays.

    tokens, targets, positions, segment_ids: int32. rollout_log_probs, advantages, loss_weights:
    float32. mask: bool, response targets. routes: int32 [layers, rows, row_length], where `replay`.

    Raises:
      RLError: for a rollout longer than a row, or without routes under replay.
    """
    lengths = [len(r.prompt) + len(r.tokens) - 1 for r in rollouts]
    rows = _assign(lengths, row_length)
    total = -(-len(rows) // rows_per_microbatch) * rows_per_microbatch
    packed = empty_rows(total, row_length, layers if replay else 0)
    for row, members in enumerate(rows):
        start = 0
        for segment, i in enumerate(members, start=1):
            where = slice(start, start + lengths[i])
            _place(packed, row, where, segment, rollouts[i])
            response = slice(where.stop - len(rollouts[i].tokens), where.stop)
            packed["advantages"][row, response] = advantages[i]
            packed["loss_weights"][row, response] = token_weights[i]
            if replay:
                recorded = rollouts[i].routes
                if recorded is None:
                    raise RLError("router replay is on, but a rollout has no recorded routes")
                packed["routes"][:, row, where] = place_routes(
                    recorded, lengths[i], layers=layers, num_experts=num_experts
                )
            start = where.stop
    return [_cut(packed, i, i + rows_per_microbatch) for i in range(0, total, rows_per_microbatch)]


def _assign(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Which sequences each row holds: best fit, longest first."""
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if lengths[i] > row_length:
            raise RLError(
                f"a rollout of {lengths[i] + 1} tokens does not fit a row of {row_length}; raise "
                "the row length, or lower the limits on prompt and response"
            )
        fitting = [r for r in range(len(rows)) if room[r] >= lengths[i]]
        if fitting:
            row = min(fitting, key=lambda r: room[r])
        else:
            row = len(rows)
            rows.append([])
            room.append(row_length)
        rows[row].append(i)
        room[row] -= lengths[i]
    return rows


def empty_rows(rows: int, length: int, layers: int) -> Rows:
    """Rows of nothing but padding; with routes where `layers` is positive."""
    shape = (rows, length)
    integers = ("tokens", "targets", "positions", "segment_ids")
    floats = ("rollout_log_probs", "advantages", "loss_weights")
    packed: Rows = {name: np.zeros(shape, np.int32) for name in integers}
    packed |= {name: np.zeros(shape, np.float32) for name in floats}
    packed["mask"] = np.zeros(shape, np.bool_)
    if layers:
        packed["routes"] = np.full((layers, *shape), ROUTE_LIVE, np.int32)
    return packed


def _place(packed: Rows, row: int, where: slice, segment: int, rollout: Rollout) -> None:
    sequence = np.concatenate([rollout.prompt, rollout.tokens])
    packed["tokens"][row, where] = sequence[:-1]
    packed["targets"][row, where] = sequence[1:]
    packed["positions"][row, where] = np.arange(len(sequence) - 1)
    packed["segment_ids"][row, where] = segment
    response = slice(where.stop - len(rollout.tokens), where.stop)
    packed["rollout_log_probs"][row, response] = rollout.log_probs
    packed["mask"][row, response] = True


def _cut(packed: Rows, start: int, stop: int) -> Rows:
    return {
        name: array[:, start:stop] if name == "routes" else array[start:stop]
        for name, array in packed.items()
    }
