"""The preview shows what a run reads, with what is learnt marked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zaya_jax.data.config import DataError
from zaya_jax.data.preview import main

CONFIG = """
from experiments.configs import base

def get_config(name="chats"):
    config = base.get_config("nano")
    config.data.source = {source!r}
    config.data.tokenizer = "bytes"
    config.data.packing = "planned"
    config.data.sequence_length = 160
    return config
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    source = tmp_path / "chats.jsonl"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{n}?"},
                {"role": "assistant", "reasoning": "hm", "content": f"answer {n}"},
            ]
        }
        for n in range(20)
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    path = tmp_path / "config.py"
    path.write_text(CONFIG.format(source=str(source)))
    return path


def test_windows_segments_and_masks_are_shown(
    config_file: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["--config", f"{config_file}:chats", "--windows", "2"]) == 0
    shown = capsys.readouterr().out
    assert "1 unusable rows were left out" in shown
    assert shown.count("window of 160: ") == 2
    assert "<think>\n⟦hm\n</think>\n\nanswer " in shown
    assert "<|im_end|>⟧\n" in shown
    assert "⟦<bos>" not in shown


def test_a_missing_config_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"config file '.*gone\.py' does not exist"):
        main(["--config", str(tmp_path / "gone.py")])
