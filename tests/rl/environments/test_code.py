"""Programs judged by tests they cannot see."""

from __future__ import annotations

import shutil

import pytest

from zaya_jax.rl.environments.code import (
    CodeEnvironment,
    CodeRecord,
    CodeTest,
    last_code_block,
)
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sandbox import Sandbox
from zaya_jax.rl.sandbox_command import Limits

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap (apt-get install bubblewrap)"
)
RECORD = CodeRecord("Double the number.", (CodeTest("3", "6\n"), CodeTest("482913", "965826\n")))


@pytest.fixture(scope="module")
def code() -> CodeEnvironment:
    return CodeEnvironment([RECORD], Sandbox(Limits(wall_seconds=30, cpu_seconds=1)))


def fenced(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\n"


@needs_bubblewrap
@pytest.mark.parametrize(
    ("program", "reward", "reason"),
    [
        ("print(2 * int(input()))", 1, "passed 2 tests"),
        ("print(' ', 2 * int(input()), '\\n')", 1, "passed"),
        ("print(6)", 0, "test 2 of 2: wrong output"),
        ("print(2 * int(input())); raise SystemExit(1)", 0, "test 1 of 2: failed"),
        ("while True: pass", 0, "test 1 of 2: timeout"),
        ("print('6' * 10**8)", 0, "test 1 of 2"),
        (
            "import glob\n"
            "for name in glob.glob('/*') + glob.glob('/tmp/*') + glob.glob('/program/*'):\n"
            "    try: text = open(name).read()\n"
            "    except OSError: continue\n"
            "    if '9658' + '26' in text: print('9658' + '26')",
            0,
            "wrong output",  # expected outputs are nowhere inside
        ),
    ],
)
def test_all_tests_must_pass(code: CodeEnvironment, program: str, reward: int, reason: str) -> None:
    score = code.score(code.sample(0, 0), fenced(program))
    assert score.reward == reward
    assert reason in score.reason


@needs_bubblewrap
def test_a_response_without_code_is_wrong(code: CodeEnvironment) -> None:
    assert code.score(code.sample(0, 0), "print(6)").reason == "no block of code"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (fenced("a") + fenced("b"), "b\n"),
        ("```\na\n```", "a\n"),
        ("```cpp\na\n```", None),
        ("```python\na", None),
        (fenced("x = '''\n``` '''"), "x = '''\n``` '''\n"),
    ],
)
def test_the_last_complete_block_counts(text: str, program: str | None) -> None:
    assert last_code_block(text) == program


def test_records_without_tests_or_with_gaps_are_refused() -> None:
    with pytest.raises(RLError, match="has no tests"):
        CodeRecord("x", ())
    with pytest.raises(RLError, match=r"levels \[1\]"):
        CodeEnvironment([CodeRecord("x", RECORD.tests, level=1)], Sandbox(unsafe=True), name="code")
