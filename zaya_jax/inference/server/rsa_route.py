"""Markovian RSA over HTTP: candidates as server-sent events, as they finish.

    POST /v1/markovian_rsa
    {"model": "zaya", "problem": "…", "preset": "light", "settings": {"rounds": 1}, "seed": 0}

`settings` changes fields of the preset. Every event is an object with a `kind`: `start` with the
settings, `candidate`, and at the end `result` with the vote and the cost, or `error`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from zaya_jax.config import ConfigError
from zaya_jax.inference.markovian_rsa import RSAResult, markovian_rsa
from zaya_jax.inference.rollouts import RolloutEngine, RolloutError
from zaya_jax.inference.rsa_settings import RSA_PRESETS, RSASettings
from zaya_jax.inference.rsa_trace import Candidate
from zaya_jax.inference.server.protocol import BodyError
from zaya_jax.inference.service import ServiceError

_FIELDS = {"model", "problem", "preset", "settings", "seed"}
_CHANGEABLE = ("rounds", "population", "subset", "thinking_budget", "tail", "answer_budget")
_MOST_ROUNDS, _MOST_POPULATION = 64, 128  # of one request


@dataclasses.dataclass(frozen=True)
class RSACall:
    """A checked request."""

    model: str
    problem: str
    settings: RSASettings


def rsa_call(body: Mapping[str, Any]) -> RSACall:
    """Checks a parsed body.

    Raises:
      BodyError: for a missing, unknown or wrong field, or settings that do not fit together.
    """
    for name in body:
        if name not in _FIELDS:
            raise BodyError(f"{name} is unknown; fields are {', '.join(sorted(_FIELDS))}", name)
    model, problem = (_text(body, name) for name in ("model", "problem"))
    preset = body.get("preset", "light")
    if not isinstance(preset, str) or preset not in RSA_PRESETS:
        raise BodyError(f"preset must be one of {', '.join(RSA_PRESETS)}", "preset")
    changes = body.get("settings", {})
    if not isinstance(changes, dict):
        raise BodyError("settings must be an object", "settings")
    for name, value in changes.items():
        if name not in _CHANGEABLE:
            raise BodyError(
                f"settings.{name} is unknown; fields are {', '.join(_CHANGEABLE)}", "settings"
            )
        if isinstance(value, bool) or not isinstance(value, int):
            raise BodyError(f"settings.{name} must be an integer", f"settings.{name}")
    seed = body.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise BodyError("seed must be an integer from 0 to 2^63 - 1", "seed")
    try:
        settings = dataclasses.replace(RSA_PRESETS[preset], **changes, seed=seed)
    except ConfigError as error:
        raise BodyError(str(error), "settings") from None
    if settings.rounds > _MOST_ROUNDS or settings.population > _MOST_POPULATION:
        raise BodyError(
            f"settings: at most {_MOST_ROUNDS} rounds of {_MOST_POPULATION} candidates", "settings"
        )
    return RSACall(model, problem, settings)


async def rsa_events(engine: RolloutEngine, call: RSACall) -> AsyncIterator[str]:
    """Server-sent events of a run; closing the iterator ends the run."""
    events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def run() -> None:
        def watch(candidate: Candidate) -> None:
            events.put_nowait(_candidate_event(engine, call.settings, candidate))

        try:
            result = await markovian_rsa(engine, call.problem, call.settings, watch=watch)
            events.put_nowait(_result_event(result))
        except RolloutError as error:
            events.put_nowait({"kind": "error", "message": str(error)})
        except ExceptionGroup as group:  # of the candidates of one round
            failures, others = group.split(ServiceError)
            if others is not None or failures is None:
                raise
            events.put_nowait({"kind": "error", "message": str(failures.exceptions[0])})
        finally:
            events.put_nowait(None)

    yield _event({"kind": "start", "settings": dataclasses.asdict(call.settings)})
    task = asyncio.create_task(run())
    try:
        while (event := await events.get()) is not None:
            yield _event(event)
        await task
        yield "data: [DONE]\n\n"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _candidate_event(
    engine: RolloutEngine, settings: RSASettings, own: Candidate
) -> dict[str, Any]:
    event: dict[str, Any] = {
        "kind": "candidate",
        "round": own.round,
        "index": own.index,
        "drawn": own.drawn,
        "error": own.error,
    }
    if own.rollout is None:
        return event
    rollout, tail = own.rollout, own.rollout.reasoning[-settings.tail :]
    return {
        **event,
        "tail": engine.text_of(tail),
        "tail_tokens": len(tail),
        "forgotten_tokens": len(rollout.reasoning) - len(tail),
        "closed": rollout.closed,
        "answer": rollout.answer,
        "new_tokens": rollout.new_tokens,
    }


def _result_event(result: RSAResult) -> dict[str, Any]:
    spent = dataclasses.asdict(result.spent)
    return {"kind": "result", "vote": result.vote(), "spent": spent}


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BodyError(f"{name} must be text, and not empty", name)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BodyError(f"{name} holds half of a surrogate pair", name) from None
    return value


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
