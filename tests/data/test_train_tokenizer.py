"""The script behind the shipped tokenizer makes the same file from the same text."""

from __future__ import annotations

import sys

from zaya_jax.data import load_tokenizer, train_tokenizer


def test_training_is_repeatable_and_gives_the_shipped_layout(tmp_path, monkeypatch):
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for file in files:
        arguments = ["train_tokenizer", "--output", str(file)]
        arguments += ["--source", "synthetic", "--vocab-size", "400"]
        monkeypatch.setattr(sys, "argv", arguments)
        train_tokenizer.main()
    assert files[0].read_bytes() == files[1].read_bytes()
    trained, shipped = load_tokenizer(str(files[0])), load_tokenizer("zaya_demo_8k")
    assert trained.special_tokens == shipped.special_tokens
    assert trained.vocab_size == 400
    text = "the naïve reader sees the gate\n"
    assert trained.decode(trained.encode(text)) == text
