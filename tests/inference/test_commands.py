"""The commands on the terminal: what they print, and how they refuse."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.inference.models import text_engine
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.data.config import DataError
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference import chat, command, generate, terminal
from zaya_jax.inference.request import RequestError
from zaya_jax.inference.settings import EngineSettings


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that find a model without a disk."""
    loaded = (text_engine(), load_tokenizer("bytes"))
    monkeypatch.setattr(terminal, "load_engine", lambda *arguments: loaded)
    return ["--checkpoint", "anywhere"]


def test_generate_continues_every_prompt(
    checkpoint: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--max-tokens", "5", "--json", "--top-p", "1"]
    for _ in range(2):
        assert generate.main([*checkpoint, "--prompt", "ab", "--prompt", "cd", *options]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt"] for line in lines] == ["ab", "cd"] * 2
    assert lines[:2] == lines[2:]
    assert all(len(line["tokens"]) == 5 for line in lines)


def test_generate_reads_standard_input(
    checkpoint: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    generate.main([*checkpoint, "--prompt", "-", "--max-tokens", "1", "--top-p", "1"])
    assert capsys.readouterr().out.startswith("from a pipe")


def test_chat_remembers_what_was_said(
    checkpoint: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter(["Hello", "And?", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(asked))
    prompts: list[tuple[int, ...]] = []
    stream = chat._stream

    def spy(engine: Any, request: Any) -> str:
        prompts.append(request.tokens)
        return stream(engine, request)

    monkeypatch.setattr(chat, "_stream", spy)
    options = ["--max-tokens", "4", "--top-p", "1", "--system", "Be kind."]
    assert chat.main([*checkpoint, *options]) == 0
    first, second = (load_tokenizer("bytes").decode(tokens) for tokens in prompts)
    assert "Be kind." in first
    assert "Hello" in first
    assert "Hello" in second
    assert "And?" in second


def test_a_mesh_gives_every_part_as_many_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EngineSettings] = []

    def load(checkpoint: str, tokenizer: str | None, settings: EngineSettings) -> Any:
        asked.append(settings)
        return text_engine(), load_tokenizer("bytes")

    monkeypatch.setattr(terminal, "load_engine", load)
    options = ["--max-tokens", "1", "--top-p", "1", "--mesh", "data=2,expert=4"]
    prompts = [option for text in "abc" for option in ("--prompt", text)]
    assert generate.main(["--checkpoint", "anywhere", *prompts, *options]) == 0
    assert (asked[0].slots, asked[0].mesh_data, asked[0].mesh_expert) == (4, 2, 4)


@pytest.mark.parametrize("mesh", ["data", "fsdp=2", "data=two", "data=2,data=2", ""])
def test_a_mesh_that_cannot_be_read_is_refused(
    mesh: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        generate.main(["--checkpoint", "nowhere", "--prompt", "a", "--mesh", mesh])
    assert f"{mesh!r}: must be data=N, expert=M or both" in capsys.readouterr().err


def test_wrong_numbers_are_told_before_the_model_is_read() -> None:
    with pytest.raises(RequestError, match="max_tokens=0"):
        generate.main(["--checkpoint", "nowhere", "--prompt", "a", "--max-tokens", "0"])


@pytest.mark.parametrize(
    "error", [CheckpointError("no model there"), DataError("no tokenizer"), OSError("disk\nfull")]
)
def test_what_a_user_can_mend_is_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> int:
        raise error

    with pytest.raises(SystemExit) as ended:
        command.run_command(run)
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1


def test_a_wrong_command_line_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        generate.main(["--prompt", "a"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: the following arguments are required")


def test_a_checkpoint_that_is_not_there(tmp_path: Any) -> None:
    with pytest.raises(CheckpointError):
        command.load_engine(str(tmp_path), None, text_engine().settings)
