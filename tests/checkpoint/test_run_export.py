"""Checkpoints of training runs as folders for transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.hub_folders import (
    SLIDING,
    TINY,
    assert_same_bytes,
    new_keys,
    random_tensors,
    read_folder,
    write_folder,
)
from zaya_jax.checkpoint.convert import convert
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.layouts import LAYOUTS, variables_from_tensors
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.checkpoint.manager import CheckpointManager
from zaya_jax.checkpoint.settings import CheckpointConfig
from zaya_jax.checkpoint.skip_bias import SkipBias
from zaya_jax.config import ModelConfig


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)


def save_run(workdir: Path, variables: Any, config: ModelConfig, run: dict[str, Any]) -> None:
    """A run's checkpoint at step 7, as training saves it."""
    metadata = {"config": {"model": config.to_dict(), **run}}
    with CheckpointManager(workdir / "checkpoints", CheckpointConfig()) as manager:
        training = {"step": np.asarray(7)}
        manager.save(7, variables=variables, training=training, data={}, metadata=metadata)
        manager.wait()
    (workdir / "config.json").write_text(json.dumps({"model": config.to_dict()}))


def test_a_training_run_is_exported_with_its_tokenizer(tmp_path: Path):
    tensors = random_tensors("transformers", SLIDING)
    variables = variables_from_tensors(LAYOUTS["transformers"].rules(SLIDING), SLIDING, tensors)
    save_run(tmp_path / "run", variables, SLIDING, {"data": {"tokenizer": "zaya_demo_8k"}})
    for number, source in enumerate([tmp_path / "run", tmp_path / "run" / "checkpoints" / "7"]):
        target = tmp_path / f"exported{number}"
        done = convert(source, target, skip_bias=SkipBias.KEEP)
        assert "transformers makes it -1 on loading" in done.notes[0]
        assert_same_bytes(read_folder(target), tensors)
        assert json.loads((target / "tokenizer.json").read_text())["model"]["type"] == "BPE"
        keys = json.loads((target / "config.json").read_text())
        assert (keys["pad_token_id"], keys["eos_token_id"], keys["bos_token_id"]) == (0, 1, 2)


def test_a_run_loses_nothing_on_its_way_through_an_orbax_checkpoint(tmp_path: Path):
    """Neither its tokenizer and token ids, nor that transformers must keep its routing."""
    tensors = random_tensors("transformers", TINY)
    variables = variables_from_tensors(LAYOUTS["transformers"].rules(TINY), TINY, tensors)
    save_run(tmp_path / "run", variables, TINY, {"data": {"tokenizer": "zaya_demo_8k"}})
    convert(tmp_path / "run", tmp_path / "direct")
    convert(tmp_path / "run", tmp_path / "orbax", layout="orbax")
    done = convert(tmp_path / "orbax", tmp_path / "exported")
    assert "moved together" in done.notes[0]
    for name in ("config.json", "tokenizer.json"):
        found = (tmp_path / "exported" / name).read_bytes()
        assert found == (tmp_path / "direct" / name).read_bytes()
    assert_same_bytes(read_folder(tmp_path / "exported"), read_folder(tmp_path / "direct"))


def test_nothing_is_made_among_the_checkpoints_of_a_run(tmp_path: Path):
    tensors = random_tensors("transformers", TINY)
    variables = variables_from_tensors(LAYOUTS["transformers"].rules(TINY), TINY, tensors)
    save_run(tmp_path / "run", variables, TINY, {})
    steps = tmp_path / "run" / "checkpoints"
    with pytest.raises(CheckpointError, match="among the checkpoints of a run"):
        convert(steps / "7", steps / "9", layout="orbax")
    assert [path.name for path in steps.iterdir()] == ["7"]


def test_an_exported_run_chooses_the_same_classes_after_transformers_has_loaded_it(tmp_path: Path):
    """Its skip biases become -1 and the others move along; a release's are left as they are."""
    tensors = random_tensors("transformers", TINY)
    variables = variables_from_tensors(LAYOUTS["transformers"].rules(TINY), TINY, tensors)
    save_run(tmp_path / "run", variables, TINY, {})
    done = convert(tmp_path / "run", tmp_path / "exported")
    assert "moved together" in done.notes[0]
    found = read_folder(tmp_path / "exported")
    for name, tensor in tensors.items():
        if not name.endswith("balancing_biases"):
            assert found[name].tobytes() == tensor.tobytes()
            continue
        assert found[name][-1] == -1.0
        expected = tensor.astype(np.float64) - tensor[-1] - 1.0
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-6)
    convert(tmp_path / "run", tmp_path / "old", layout="zyphra")
    assert_same_bytes(read_folder(tmp_path / "old"), random_tensors("zyphra", TINY))

    source = write_folder(tmp_path / "source", new_keys(), tensors)
    kept = convert(source, tmp_path / "kept", layout="transformers")
    assert "--skip-bias shift" in kept.notes[0]
    assert_same_bytes(read_folder(tmp_path / "kept"), tensors)
    moved = convert(source, tmp_path / "moved", layout="transformers", skip_bias=SkipBias.SHIFT)
    assert "moved together" in moved.notes[0]
    assert_same_bytes(read_folder(tmp_path / "moved"), found)


def test_a_run_that_began_from_a_release_hands_its_tokenizer_on(tmp_path: Path):
    tensors = random_tensors("transformers", TINY)
    source = write_folder(tmp_path / "source", new_keys(), tensors)
    (source / "tokenizer.json").write_text('{"its": "own"}')
    convert(source, tmp_path / "orbax")
    variables = load_checkpoint(tmp_path / "orbax")[1]
    for number, start in enumerate(["orbax", "source"]):
        run = tmp_path / f"run{number}"
        save_run(run, variables, TINY, {"init_from": str(tmp_path / start)})
        convert(run, tmp_path / f"exported{number}")
        exported = tmp_path / f"exported{number}"
        assert (exported / "tokenizer.json").read_text() == '{"its": "own"}'
        assert json.loads((exported / "config.json").read_text())["eos_token_id"] == 6
    later = tmp_path / "later"  # it began from a run that began from the release
    save_run(later, variables, TINY, {"init_from": str(tmp_path / "run0")})
    convert(later, tmp_path / "exported2")
    assert (tmp_path / "exported2" / "tokenizer.json").read_text() == '{"its": "own"}'
