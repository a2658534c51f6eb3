"""Boxed answers compared by math-verify in the sandbox."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from zaya_jax.rl.environments.maths import MathsEnvironment, MathsRecord, last_boxed
from zaya_jax.rl.errors import RLError

needs_verifier = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap (apt-get install bubblewrap)"
)


@pytest.fixture(scope="module")
def maths() -> Iterator[MathsEnvironment]:
    pytest.importorskip("math_verify")
    records = [
        MathsRecord("Halve 1.", "\\frac{1}{2}"),
        MathsRecord("Which numbers?", "\\{1, 2\\}", level=1),
    ]
    made = MathsEnvironment(records)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{7}", "7"),
        ("so \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{1} no, \\boxed{2}", "2"),
        ("\\boxed{1} no, \\boxed{\\frac{1}{2", None),
        ("\\boxed{\\{1\\}}", "\\{1\\}"),
        ("7", None),
        ("\\boxed", None),
    ],
)
def test_the_last_box_counts_with_its_braces(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@needs_verifier
@pytest.mark.parametrize(
    ("level", "answer", "reward"),
    [
        (0, "\\boxed{\\frac{1}{2}}", 1),
        (0, "\\boxed{0.5}", 1),
        (0, "\\boxed{\\dfrac{2}{4}}", 1),
        (0, "\\boxed{2}", 0),
        (0, "\\boxed{}", 0),
        (0, "\\boxed{" + "9" * 2_000 + "}", 0),
        (0, "one half", 0),
        (0, "\\boxed{__import__('os').system('true')}", 0),
        (1, "\\boxed{\\{2, 1\\}}", 1),
        (1, "\\boxed{\\{1, 3\\}}", 0),
    ],
)
def test_equal_values_are_right_however_they_are_written(
    maths: MathsEnvironment, level: int, answer: str, reward: int
) -> None:
    problem = maths.sample(level, 0)
    score = maths.score(problem, answer)
    assert (score.reward, score.broken) == (reward, False), score


@needs_verifier
def test_a_gap_in_the_levels_is_refused() -> None:
    pytest.importorskip("math_verify")
    with pytest.raises(RLError, match=r"levels \[1\]"):
        MathsEnvironment([MathsRecord("x", "1", level=1)])
