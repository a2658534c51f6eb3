"""A reward model out of a checkpoint and a head: its formula, its gate, and what it refuses."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.training import tiny
from zaya_jax.checkpoint.export import export_variables
from zaya_jax.config import ExpertDispatch
from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.conversation import Conversation, Message
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.model.transformer import Transformer
from zaya_jax.rl.environments.practice import PracticeEnvironment
from zaya_jax.rl.environments.preferences import GatedEnvironment, RewardModel
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError
from zaya_jax.rl.environments.reward_checkpoint import HEAD_FILE, RewardCheckpoint, read_head
from zaya_jax.rl.errors import RLError

MODEL = dataclasses.replace(
    tiny.MODEL, expert_dispatch=ExpertDispatch.DENSE, max_position_embeddings=128
)
WEIGHT = np.random.default_rng(0).normal(size=MODEL.hidden_size).astype(np.float32)
TOKENIZER = load_tokenizer("bytes")


@functools.cache
def variables() -> Any:
    made = jax.jit(Transformer(MODEL).init)(jax.random.key(0), np.zeros((1, 2), np.int32))
    return {"params": made["params"], "balancing": made["balancing"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reward") / "checkpoint"
    export_variables(MODEL, variables(), path)
    np.savez(path / HEAD_FILE, weight=WEIGHT, bias=np.float32(-0.25))
    return path


@pytest.fixture(scope="module")
def reward_model(folder: Path) -> RewardCheckpoint:
    return RewardCheckpoint(folder, TOKENIZER)


def test_the_head_reads_the_last_token_whatever_the_padding(reward_model: RewardModel) -> None:
    turns = (Message("user", "hello"), Message("assistant", "hi, you " * 3))
    rendered = ChatTemplate(TOKENIZER).render(Conversation(turns), thinking=False)
    states = jax.jit(
        lambda tokens: Transformer(MODEL).apply(
            variables(), tokens, method=Transformer.hidden_states
        )
    )(rendered.arrays()[0][None])
    logit = float(np.asarray(states.final)[0, -1] @ WEIGHT) - 0.25
    reward = reward_model.score("hello", "hi, you " * 3)
    assert reward == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-5)


def test_it_is_asked_only_where_the_checks_pass(reward_model: RewardModel) -> None:
    environment = GatedEnvironment(PracticeEnvironment("reverse"), reward_model)
    problem = environment.sample(0, 0)
    right = problem.reference["digits"][::-1]
    assert environment.score(problem, "x").reward == 0
    judged = environment.score(problem, right)
    assert judged.reason.startswith("judged")
    assert 0 < judged.reward == reward_model.score(problem.prompt, right) < 1


def test_what_it_cannot_judge_is_no_bad_score(reward_model: RewardModel) -> None:
    with pytest.raises(BrokenEnvironmentError, match="it has 128 positions"):
        reward_model.score("a" * 150, "b")


def test_heads_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", weight=np.zeros(17), bias=np.float32(0))
    np.savez(tmp_path / "half.npz", weight=np.zeros(16))
    (tmp_path / "torn.npz").write_bytes(b"PK")
    for name, said in (
        ("wide", r"weight \[17\] and bias \[\]; the checkpoint asks for \[16\]"),
        ("half", "is no reward head"),
        ("torn", "is no reward head"),
        ("missing", "is no reward head"),
    ):
        with pytest.raises(RLError, match=said):
            read_head(tmp_path / f"{name}.npz", MODEL.hidden_size)
