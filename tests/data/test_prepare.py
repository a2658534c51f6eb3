"""Prepared corpora: as without preparing; restartable; refused where they do not fit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("array_record")

from zaya_jax.data import DataConfig, DataError, load_text, training_batches
from zaya_jax.data.prepare import main, prepare

LENGTH = 96


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for shard in range(3):
        rows = [{"text": f"shard {shard}, row {n}: " + "words " * (n % 30)} for n in range(30)]
        rows += [
            {
                "messages": [
                    {"role": "user", "content": f"{shard}, {n}?"},
                    {"role": "assistant", "reasoning": "r" * 20 * n, "content": "a"},
                ]
            }
            for n in range(10)
        ]
        lines = [json.dumps(row) for row in rows]
        (folder / f"{shard}.jsonl").write_text("\n".join([*lines, "{"]) + "\n")
    return folder


def _config(source: Path, **changes: object) -> DataConfig:
    config = DataConfig(
        source=str(source),
        tokenizer="bytes",
        sequence_length=LENGTH,
        batch_size=2,
        packing="planned",
        max_bytes=None,
    )
    return dataclasses.replace(config, **changes)


@pytest.fixture(scope="module")
def prepared(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("prepared")
    report = prepare(_config(source), output, workers=1)
    assert sum("1 unusable rows" in line for line in report) == 3
    return output


def test_prepared_examples_are_those_of_the_source(source: Path, prepared: Path):
    direct = load_text(_config(source)).sources[0]
    read = load_text(_config(prepared)).sources[0]
    for part in ("train", "validation"):
        one, other = getattr(direct, part), getattr(read, part)
        np.testing.assert_array_equal(np.sort(one.lengths), np.sort(other.lengths))
        for index in range(0, len(one), 7):
            for a, b in zip(one.example(index), other.example(index), strict=True):
                np.testing.assert_array_equal(a, b)
    assert read.outcomes["cut"] > 0
    assert {k: v for k, v in direct.outcomes.items() if v} == read.outcomes


def test_an_empty_file_and_a_repeated_one_are_counted_and_left_out(source: Path, tmp_path: Path):
    folder = tmp_path / "source"
    folder.mkdir()
    original = (source / "0.jsonl").read_bytes()
    for name, content in (("a", original), ("b", b""), ("c", b"{\n"), ("d", original)):
        (folder / f"{name}.jsonl").write_bytes(content)
    report = prepare(_config(folder), tmp_path / "prepared", workers=1)
    assert f"{folder}/b.jsonl: holds nothing usable" in report
    assert f"{folder}/c.jsonl: holds nothing usable" in report
    assert any(line.startswith(f"{folder}/d.jsonl: repeats {folder}/a.jsonl") for line in report)
    loaded = load_text(_config(tmp_path / "prepared")).sources[0]
    alone = tmp_path / "alone"
    prepare(_config(source / "0.jsonl"), alone, workers=1)
    once = load_text(_config(alone)).sources[0]
    assert len(loaded.train) == len(once.train)
    assert loaded.outcomes == once.outcomes


def test_training_reads_prepared_data(prepared: Path):
    batches = training_batches(_config(prepared))
    first = [next(batches) for _ in range(3)]
    batches.close()
    assert all(batch["tokens"].shape == (2, LENGTH) for batch in first)
    assert any((b["loss_weights"] == 0)[b["segment_ids"] > 0].any() for b in first)


def test_a_killed_run_goes_on_and_gives_the_same_files(
    source: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from zaya_jax.data import prepare as module

    real, calls = module.read_samples, []

    def dies_at_the_second(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(module, "read_samples", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        prepare(_config(source), tmp_path, workers=1)
    assert not (tmp_path / "manifest.json").exists()
    with pytest.raises(DataError):  # an unfinished folder is no source
        load_text(_config(tmp_path))
    prepare(_config(source), tmp_path, workers=1)
    assert len(calls) == 4  # the shard that was done is not made again
    manifests = [json.loads((f / "manifest.json").read_text()) for f in (prepared, tmp_path)]
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": "zaya_demo_8k"}, "was made with tokenizer="),
        ({"sequence_length": 64}, "was made with sequence_length=96, this run has 64"),
        ({"thinking": False}, "was made with thinking=True"),
    ],
)
def test_prepared_data_of_another_kind_is_refused(prepared: Path, changes: dict, message: str):
    with pytest.raises(DataError, match=message):
        load_text(_config(prepared, **changes))


def test_missing_and_cut_shards_are_named(source: Path, tmp_path: Path):
    prepare(_config(source), tmp_path, workers=1)
    shard = tmp_path / "train-00001.arrayrecord"
    content = shard.read_bytes()
    shard.write_bytes(content[:-10])
    with pytest.raises(DataError, match=r"train-00001\.arrayrecord': the manifest lists"):
        load_text(_config(tmp_path))
    shard.unlink()
    with pytest.raises(DataError, match="there is nothing"):
        load_text(_config(tmp_path))


def test_a_shard_that_vanishes_while_training_is_one_error(source: Path, tmp_path: Path):
    prepare(_config(source), tmp_path, workers=1)
    config = _config(tmp_path, prefetch_batches=0)
    batches = training_batches(config, load_text(config))
    for shard in tmp_path.glob("train-*.arrayrecord"):
        shard.unlink()
    with pytest.raises(DataError, match=r"shard '.*train-0.*cannot be read"):
        next(batches)
    batches.close()


def test_another_folder_is_not_written_over(source: Path, tmp_path: Path, prepared: Path):
    (tmp_path / "somebody's.txt").write_text("x")
    with pytest.raises(DataError, match="not empty"):
        prepare(_config(source), tmp_path, workers=1)
    with pytest.raises(DataError, match="sequence_length: 96 -> 64"):
        prepare(_config(source, sequence_length=64), prepared, workers=1)


@pytest.mark.slow
def test_a_ray_cluster_makes_the_same_shards(source: Path, prepared: Path, tmp_path: Path):
    pytest.importorskip("ray", reason="needs the extra ray")
    prepare(_config(source), tmp_path / "done", workers=1, ray="local")
    manifests = [
        json.loads((f / "manifest.json").read_text()) for f in (prepared, tmp_path / "done")
    ]
    assert manifests[0] == manifests[1]
    with pytest.raises(DataError, match="more than max_bad_rows=0 unusable rows"):
        prepare(_config(source, max_bad_rows=0), tmp_path / "bad", workers=1, ray="local")


@pytest.mark.slow
def test_the_command_with_two_processes_gives_the_same_shards(
    source: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["--source", str(source), "--output", str(tmp_path), "--tokenizer", "bytes"]
    words += ["--sequence-length", str(LENGTH), "--validation-fraction", "0.05", "--workers", "2"]
    assert main(words) == 0
    assert "train: " in capsys.readouterr().out
    manifests = [json.loads((f / "manifest.json").read_text()) for f in (prepared, tmp_path)]
    assert manifests[0] == manifests[1]
