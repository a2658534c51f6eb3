"""The commands: convert, verify, inspect and verify_release, with their words and exit statuses."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.checkpoint.hub_folders import (
    BFLOAT16,
    TINY,
    new_keys,
    random_tensors,
    v1_keys,
    write_folder,
)
from zaya_jax.checkpoint import convert, inspect, verify, verify_release
from zaya_jax.checkpoint.command import run_command
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.checkpoint.open import open_checkpoint

KEYS, OLD_KEYS = new_keys(), v1_keys()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "source", OLD_KEYS, random_tensors("zyphra", TINY), shards=2)


def test_convert_says_what_it_made(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    (source / "tokenizer.json").write_text("{}")
    target = tmp_path / "target"
    assert convert.main([str(source), str(target)]) == 0
    printed = capsys.readouterr().out
    assert f"{source} (zyphra) -> {target} (orbax)" in printed
    assert f"{open_checkpoint(source).parameter_count:,} parameters" in printed
    assert "along with it: tokenizer.json" in printed


@pytest.mark.parametrize(
    ("arguments", "layout"),
    [
        (["hf-to-orbax"], "orbax"),
        (["orbax-to-hf"], "transformers"),
        (["orbax-to-hf", "--layout", "zyphra"], "zyphra"),
        (["--layout", "transformers", "--max-shard-size", "40KB"], "transformers"),
    ],
)
def test_directions(arguments: list[str], layout: str, source: Path, tmp_path: Path):
    target = tmp_path / "target"
    words = [*arguments[:1], str(source), str(target), *arguments[1:]]
    if arguments[0].startswith("--"):
        words = [str(source), str(target), *arguments]
    assert convert.main(words) == 0
    assert open_checkpoint(target).layout == layout


@pytest.mark.parametrize(
    "arguments",
    [
        ["a"],
        ["a", "b", "--layout", "gguf"],
        ["a", "b", "--dtype", "int4"],
        ["a", "b", "--max-shard-size", "big"],
        ["a", "b", "--max-shard-size", "0"],
        ["a", "b", "--max-shard-size", "9" * 400],
        ["a", "b", "--skip-bias", "x"],
        ["hf-to-orbax", "a", "b", "--layout", "zyphra"],
        ["orbax-to-hf", "a", "b", "--layout", "orbax"],
    ],
)
def test_wrong_words_are_one_line_and_status_2(arguments: list[str], capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as stopped:
        convert.main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("module", [convert, verify, inspect, verify_release])
def test_a_wrong_folder_is_one_line_and_status_1(
    module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture
):
    missing = str(tmp_path / "missing")
    words = {convert: [missing, missing + "2"], verify: [missing, missing]}.get(module, [missing])
    with pytest.raises(SystemExit) as stopped:
        run_command(lambda: module.main(words))
    assert stopped.value.code == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {missing} ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize("module", ["convert", "verify", "inspect", "verify_release"])
def test_modules_are_commands(module: str):
    text = Path(f"{Path(convert.__file__).parent / module}.py").read_text()
    assert text.endswith("\n    run_command(lambda: main(sys.argv[1:]))\n")


def test_commands_begin_without_jax():
    """It takes seconds to import, in which no error is one line."""
    words = "import sys; from zaya_jax.checkpoint import convert, inspect, verify"
    subprocess.run(
        [sys.executable, "-c", f"{words}; assert not {{'jax', 'orbax'}} & set(sys.modules)"],
        check=True,
        timeout=120,
    )


def test_verify_finds_equals_across_layouts(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    convert.convert(source, tmp_path / "orbax")
    convert.convert(tmp_path / "orbax", tmp_path / "new")
    assert verify.main([str(source), str(tmp_path / "new"), "--logits"]) == 0
    printed = capsys.readouterr().out
    assert "36 of 36 leaves equal" in printed
    assert "logits of 16 tokens: largest difference 0," in printed
    assert printed.endswith("\nequal\n")


def test_verify_names_the_first_offender(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    tensors = random_tensors("transformers", TINY)
    changed = tensors["model.layers.2.mlp.experts.down_proj"]
    changed[7, 3, 4] += 0.5
    changed[8, 0, 0] -= 0.25
    write_folder(tmp_path / "other", KEYS, tensors)
    words = [str(source), str(tmp_path / "other")]
    assert verify.main(words) == 1
    printed = capsys.readouterr().out
    assert "35 of 36 leaves equal" in printed
    assert "params/layers/experts/down: 2 elements, by up to 0.5" in printed
    name = "model.layers.5.zaya_block.experts.local_experts.7.linear_fc2.weight"
    assert f"tensor '{name}', element [2, 7, 3, 4]" in printed
    assert printed.endswith("DIFFERENT\n")
    assert verify.main([*words, "--tolerance", "0.6"]) == 0


def test_verify_compares_values_across_dtypes_and_treats_nan_as_a_difference(tmp_path: Path):
    tensors = random_tensors("transformers", TINY, BFLOAT16)
    narrow = open_checkpoint(write_folder(tmp_path / "narrow", KEYS, tensors))
    wide = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    same = open_checkpoint(write_folder(tmp_path / "wide", KEYS, wide))
    comparison = verify.compare(narrow, same)
    assert comparison.differences == []
    assert len(comparison.dtype_notes) == len(narrow.leaves)
    wide["model.norm.weight"][5] = np.nan
    broken = open_checkpoint(write_folder(tmp_path / "broken", KEYS, wide))
    (difference,) = verify.compare(narrow, broken, tolerance=1e9).differences
    assert difference.path == ("params", "final_norm", "weight")
    assert (difference.count, difference.largest) == (1, np.inf)
    assert verify.compare(broken, broken).differences == []


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}}, 1),
        ({"rms_norm_eps": 1e-6}, 1),
        ({"max_position_embeddings": 128}, 1),
        ({"initializer_range": 0.1}, 0),
        ({"swa_rotary_base": 5e5, "rope_parameters": ..., "rope_theta": 1e6}, 0),
    ],
)
def test_verify_compares_configurations(
    changes: dict, status: int, tmp_path: Path, capsys: pytest.CaptureFixture
):
    """The weights are the same; only fields that the model reads make it another one."""
    tensors = random_tensors("transformers", TINY)
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, keys in zip(paths, (KEYS, new_keys(**changes)), strict=True):
        write_folder(path, keys, tensors)
    assert verify.main([str(path) for path in paths]) == status
    printed = capsys.readouterr().out
    assert ("differs: configuration: " in printed) == bool(status)
    assert printed.endswith("DIFFERENT\n" if status else "equal\n")


@pytest.mark.parametrize("name", [b"\xff", "\u03b1".encode()])
def test_a_name_that_the_terminal_cannot_show(
    name: bytes, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", shown)
    with pytest.raises(SystemExit) as stopped:
        run_command(lambda: convert.main([str(source), str(target)]))
    assert stopped.value.code == 0
    shown.flush()
    assert b"(orbax)" in shown.buffer.getvalue()


def test_verify_refuses_other_architectures(tmp_path: Path, source: Path):
    other = TINY.replace(router_hidden_size=8)
    folder = write_folder(
        tmp_path / "other", new_keys(other), random_tensors("transformers", other)
    )
    with pytest.raises(CheckpointError, match="router_hidden_size: 16 -> 8"):
        verify.compare(open_checkpoint(source), open_checkpoint(folder))


def test_verify_refuses_tokens_the_model_does_not_have(source: Path):
    with pytest.raises(CheckpointError, match="token 48 is outside the vocabulary of 48"):
        verify.main([str(source), str(source), "--logits", "1,48"])


def test_inspect_tells_layout_geometry_counts_and_statistics(
    source: Path, capsys: pytest.CaptureFixture
):
    assert inspect.main([str(source)]) == 0
    printed = capsys.readouterr().out
    tensors = random_tensors("zyphra", TINY)
    temperature = np.stack([tensors[f"model.layers.{j}.self_attn.qkv.temp"] for j in (0, 2, 4)])
    for line in (
        "layout      zyphra",
        f"parameters  {sum(t.size for t in tensors.values()):,}",
        f"tensors     {len(tensors)} in the zyphra layout",
        f"tensors     {len(random_tensors('transformers', TINY))} in the transformers layout",
        "  num_query_heads            4",
        f"{temperature.mean():>10.4g} {temperature.std():>10.4g} {temperature.min():>10.4g}",
        "39  balancing biases",
        "skip class can never be chosen in",
        "eos_token_id    1",
    ):
        assert line in printed, line


def test_inspect_knows_when_the_skip_class_is_closed(tmp_path: Path):
    tensors = random_tensors("transformers", TINY)
    for layer, skip in enumerate((-1.0, -0.99, -1.5)):
        biases = np.zeros(13, np.float32)
        biases[-1] = skip
        tensors[f"model.layers.{layer}.mlp.gate.balancing_biases"] = biases
    folder = write_folder(tmp_path / "model", KEYS, tensors)
    printed = "\n".join(inspect.describe(open_checkpoint(folder)))
    assert "never be chosen in 2 of 3 layers" in printed


def test_verify_release_without_weights_says_what_to_download(tmp_path: Path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match="hf download Zyphra/ZAYA1-8B --local-dir"):
            list(verify_release.verify_release(folder))


def test_verify_release_stops_at_another_model(source: Path, capsys: pytest.CaptureFixture):
    assert verify_release.main([str(source)]) == 1
    printed = capsys.readouterr().out
    assert "FAILED tensors in the zyphra layout" in printed
    assert "expected 2483" in printed
    assert "best token" not in printed


def golden_model(mistake: int | None = None) -> Callable[[Sequence[int]], list[int]]:
    """Best tokens as published; from position `mistake` on something else."""
    text = (*verify_release.GREETING_IDS, *verify_release.GREETING_GREEDY)

    def best(ids: Sequence[int]) -> list[int]:
        if tuple(ids) == (2, 818):
            return [818, verify_release.CAPITAL_BEST]
        after = [*verify_release.GREETING_BEST[:-1], *text[len(verify_release.GREETING_IDS) :]]
        if mistake is not None:
            after[mistake:] = [7] * len(after[mistake:])
        return after[: len(ids)]

    return best


def test_verify_release_compares_with_the_published_values():
    assert all(check.passed for check in verify_release.check_model(golden_model(), [2, 818]))
    assert all(c.passed for c in verify_release.check_tokenizer(lambda text: list(IDS)))
    assert not all(c.passed for c in verify_release.check_tokenizer(lambda text: [2, *IDS]))


IDS = verify_release.GREETING_IDS


@pytest.mark.parametrize(("mistake", "failing"), [(3, 2), (11, 1), (15, 0)])
def test_verify_release_judges_five_greedy_tokens(mistake: int, failing: int):
    """Position 10 predicts the first of them, 14 the last that all devices agree on."""
    checks = list(verify_release.check_model(golden_model(mistake), [2, 818]))
    assert sum(not check.passed for check in checks) == failing
