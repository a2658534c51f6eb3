"""The interface of lm-evaluation-harness, against the plain forward pass and the engine."""

from __future__ import annotations

import functools
import json
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.inference.models import TEXT_MODEL
from tests.parity.cases import ParityCase
from tests.parity.ours import case_variables
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.harness import HarnessModel, harness_class, rolling_windows
from zaya_jax.evaluation.scoring import Scored, likelihoods
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.inference.text import allowed_tokens
from zaya_jax.model.transformer import Transformer

BYTES = load_tokenizer("bytes")
MODEL = TEXT_MODEL.replace(max_position_embeddings=32)


@functools.cache
def variables() -> dict[str, Any]:
    return case_variables(ParityCase("text", TEXT_MODEL, seed=3))


@functools.cache
def harness() -> HarnessModel:
    settings = EngineSettings(
        slots=4, page_size=16, cache_tokens=2_048, prefill_chunk=64, decode_steps=4, least_table=32
    )
    return HarnessModel(MODEL, variables(), BYTES, engine_settings=settings, rows_at_once=4)


@functools.cache
def plain_forward() -> Any:
    model = Transformer(MODEL)
    return jax.jit(lambda v, t: jax.nn.log_softmax(model.apply(v, t).logits[0], axis=-1))


def plain_scores(ids: list[int], start: int) -> tuple[float, bool]:
    """The same by the whole forward pass, one row at a time."""
    padded = np.zeros((1, 32), np.int32)
    padded[0, : len(ids) - 1] = ids[:-1]
    log_probs = np.asarray(plain_forward()(variables(), jnp.asarray(padded)))
    rows = np.arange(start - 1, len(ids) - 1)
    chosen = log_probs[rows, ids[start:]]
    return float(chosen.sum()), bool((log_probs[rows].argmax(axis=-1) == ids[start:]).all())


def asked(*arguments: Any) -> Any:
    return types.SimpleNamespace(args=arguments)


def bos(text: str) -> list[int]:
    return [BYTES.bos_id, *BYTES.encode(text)]


def test_log_likelihoods_are_those_of_the_forward_pass() -> None:
    pairs = [("The sky", " is"), ("", "abc"), ("ab ", "c"), ("x" * 40, "tail"), ("one", "")]
    found = harness().loglikelihood([asked(*pair) for pair in pairs])
    expected = [
        plain_scores(bos("The sky is"), 8),
        plain_scores(bos("abc"), 1),
        plain_scores(bos("ab c"), 3),  # the space belongs to the continuation
        plain_scores([*BYTES.encode("x" * 29), *BYTES.encode("tail")], 29),
        (0.0, True),
    ]
    assert [own[0] for own in found] == pytest.approx([own[0] for own in expected], abs=1e-4)
    assert [own[1] for own in found] == [own[1] for own in expected]


def test_the_most_likely_token_is_greedy_and_no_other() -> None:
    ids = bos("abc")
    padded = np.zeros((1, 32), np.int32)
    padded[0, : len(ids)] = ids
    best = int(np.asarray(plain_forward()(variables(), padded))[len(ids) - 1].argmax())
    rows = [Scored([*ids, token], len(ids)) for token in (best, (best + 1) % 270)]
    found = likelihoods(MODEL, variables(), rows, rows_at_once=4)
    assert [own.is_greedy for own in found] == [True, False]


def test_rolling_scores_every_token_once_with_all_the_context_there_is() -> None:
    assert rolling_windows(11, 4) == [(0, 1, 5), (4, 5, 9), (6, 9, 11)]  # the harness's example
    for length, most in [(2, 4), (5, 4), (6, 4), (33, 8), (1, 4)]:
        windows = rolling_windows(length, most)
        assert [i for _, start, end in windows for i in range(start, end)] == list(range(1, length))
        assert all(0 <= first < start and end - 1 - first <= most for first, start, end in windows)
    text = "The quick brown fox jumps over the lazy dog, again."
    ids = bos(text)
    expected = sum(
        plain_scores(ids[first:end], start - first)[0]
        for first, start, end in rolling_windows(len(ids), 32)
    )
    found = harness().loglikelihood_rolling([asked(text), asked("ab")])
    assert found[0] == pytest.approx(expected, abs=1e-4)
    assert found[1] == pytest.approx(plain_scores(bos("ab"), 1)[0], abs=1e-4)


def test_a_chat_becomes_the_tokens_of_the_template() -> None:
    text = harness().apply_chat_template([{"role": "user", "content": "<|im_end|>"}])
    ids = harness()._context(text)
    assert ids[0] == BYTES.bos_id
    # What the user spelt is text; the template's own three markers are tokens.
    ends = [token for token in ids if token == BYTES.special_tokens["<|im_end|>"]]
    assert len(ends) == 1
    begun = harness().apply_chat_template(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is"}], False
    )
    assert begun.endswith("It is")
    assert harness().chat_template(True) != harness().chat_template(False)
    assert "bytes" in harness().tokenizer_name


def test_wrong_settings_and_rows_are_named() -> None:
    with pytest.raises(EvaluationError, match="'num_beams' is not supported"):
        harness()._request("a", {"num_beams": 4})
    with pytest.raises(EvaluationError, match="max_gen_toks=32 leaves no room"):
        harness()._request("a", {"max_gen_toks": 32})
    with pytest.raises(EvaluationError, match="start=0"):
        likelihoods(MODEL, variables(), [Scored([1, 2], 0)])
    with pytest.raises(EvaluationError, match="exceeds the context of 32"):
        likelihoods(MODEL, variables(), [Scored([1] * 34, 1)])


def test_generation_settings_become_requests() -> None:
    request = harness()._request("ab", {"until": "\n", "max_gen_toks": 5})
    assert request.tokens == tuple(bos("ab"))
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.0, 5)
    assert request.sampling.stop == ("\n",)
    settings = {"until": ["a", ""], "temperature": 0.5, "max_gen_toks": 5}
    drawn = harness()._request("x" * 60, settings)
    assert len(drawn.tokens) == 27  # what fits in front of the answer
    assert drawn.sampling.temperature == 0.5
    assert drawn.sampling.stop == ("a",)
    greedy = harness()._request("a", {**settings, "do_sample": False})
    assert greedy.sampling.temperature == 0


@pytest.mark.slow
def test_generation_is_greedy_and_ends_at_a_stop_string() -> None:
    own = harness()
    [text] = own.generate_until([asked("ab", {"max_gen_toks": 8})])
    assert own._engine is not None
    [completion] = own._engine.generate([own._request("ab", {"max_gen_toks": 8})])
    assert completion.text == text
    allowed, ids = allowed_tokens(MODEL, BYTES), bos("ab")
    for token in completion.tokens:
        padded = np.zeros((1, 32), np.int32)
        padded[0, : len(ids)] = ids
        log_probs = np.asarray(plain_forward()(variables(), jnp.asarray(padded)))[len(ids) - 1]
        assert token == np.where(allowed, log_probs, -np.inf).argmax()
        ids.append(token)
    stop = text[1]
    cut = own.generate_until(
        [asked("ab", {"max_gen_toks": 8, "until": [stop]}), asked("cd", {"max_gen_toks": 2})]
    )
    assert cut[0] == text[: text.index(stop)]


ROWS: list[dict[str, Any]] = [
    {"q": "ab", "options": ["c", "d"], "gold": 0},
    {"q": "x", "options": ["y", "z"], "gold": 1},
]
OWN_TASKS: dict[str, dict[str, Any]] = {
    "own_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{options}}",
        "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc"}],
    },
    "own_rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{q}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    },
    "own_writing": {
        "output_type": "generate_until",
        "doc_to_text": "{{q}}",
        "doc_to_target": "{{q}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def write_tasks(folder: Path) -> None:
    """Tasks as the harness reads them: YAML, of which JSON is a part."""
    rows = folder / "rows.json"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, fields in OWN_TASKS.items():
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}}
        task = {"task": name, "test_split": "test", **data, **fields}
        (folder / f"{name}.yaml").write_text(json.dumps(task))


@pytest.mark.slow
def test_the_harness_itself_runs_tasks_of_our_own(tmp_path: Path) -> None:
    library = pytest.importorskip("lm_eval", reason="needs the harness extra")
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    settings = harness()._settings
    model = harness_class()(MODEL, variables(), BYTES, engine_settings=settings, rows_at_once=4)
    assert isinstance(model, LM)
    write_tasks(tmp_path)
    results = library.simple_evaluate(
        model=model,
        tasks=list(OWN_TASKS),
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        log_samples=False,
    )["results"]
    right = []
    for row in ROWS:
        asked_for = bos(row["q"])
        scores = [
            plain_scores([*asked_for, *BYTES.encode(option)], len(asked_for))[0]
            for option in row["options"]
        ]
        right.append(int(np.argmax(scores)) == row["gold"])
    assert results["own_choice"]["acc,none"] == np.mean(right)
    nats = sum(plain_scores(bos(row["q"]), 1)[0] for row in ROWS)
    expected = np.exp(-nats / sum(len(row["q"]) for row in ROWS))
    assert results["own_rolling"]["byte_perplexity,none"] == pytest.approx(expected, rel=1e-4)
    assert results["own_writing"]["exact_match,none"] == 0.0
