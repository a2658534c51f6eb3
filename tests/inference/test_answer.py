"""What a chat model wrote, taken apart: on both forms of the prompt, whole and cut off."""

from __future__ import annotations

import json

import pytest

from zaya_jax.inference.answer import Answer, Call, read_answer

CALL = """<zyphra_tool_call>
<function=add>
<parameter=a>
1
</parameter>
<parameter=text>
two
lines
</parameter>
</function>
</zyphra_tool_call>"""


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        ("why\n</think>\n\n42", True, Answer("why", "42", (), True)),
        ("<think>\nwhy\n</think>\n\n42", True, Answer("why", "42", (), True)),
        ("cut off while think", True, Answer("cut off while think", "", (), False)),
        ("42", False, Answer("", "42", (), True)),
        ("<think>late\n</think>42", False, Answer("late", "42", (), True)),
        ("<think>late, for ever", False, Answer("late, for ever", "", (), False)),
        ("a</think>b</think>c", True, Answer("a", "b</think>c", (), True)),
        ("", True, Answer("", "", (), False)),
    ],
)
def test_reasoning_ends_at_its_marker(text: str, thinking: bool, expected: Answer) -> None:
    assert read_answer(text, thinking=thinking) == expected


def test_calls_leave_the_answer() -> None:
    answer = read_answer(f"</think>Let me add.\n{CALL}\n{CALL}", thinking=True)
    assert answer.content == "Let me add."
    assert [call.name for call in answer.calls] == ["add", "add"]
    assert json.loads(answer.calls[0].arguments) == {"a": 1, "text": "two\nlines"}


def test_a_call_that_is_cut_off_keeps_what_there_is() -> None:
    answer = read_answer("</think>" + CALL[: CALL.index("two") + 3], thinking=True)
    assert answer.calls == (Call("add", '{"a": 1, "text": "two"}'),)
    assert answer.content == ""


def test_calls_are_text_where_no_tools_were_declared() -> None:
    answer = read_answer(CALL, thinking=False, parse_calls=False)
    assert answer.calls == ()
    assert answer.content == CALL


@pytest.mark.parametrize("value", ["[" * 100_000, "NaN", '{"a": Infinity}', "[1"])
def test_a_value_that_is_no_json_is_text(value: str) -> None:
    call = f"<zyphra_tool_call><function=f><parameter=x>\n{value}\n</parameter></function>"
    [own] = read_answer(call, thinking=False).calls
    assert json.loads(own.arguments) == {"x": value}
