"""Tokenise and trim a source once, for all runs with that tokenizer and window.

    python -m zaya_jax.data.prepare --source DIR --output PREPARED --tokenizer zaya_demo_8k \
        --sequence-length 32768 --workers 8

Every input file becomes one shard of each part, made by one of the worker processes or, with
`--ray ADDRESS`, by a task on a Ray cluster whose machines share the folders. The command may be
killed at any time; the same command again makes only the shards that are missing. Shards are the
same for any number of workers. Repeated rows are found within a file, not across files; a file that
gives the same shards as one before it is left out.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.config import ConfigError
from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.examples import Encoder, Piece
from zaya_jax.data.prepared import (
    MANIFEST,
    Shard,
    describe,
    encode,
    lengths_file,
    write_manifest,
)
from zaya_jax.data.row_files import optional_library, row_files_of
from zaya_jax.data.samples import read_samples
from zaya_jax.data.spread import map_in_processes, map_on_ray
from zaya_jax.data.tokenizer import tokenizer_of

PARTS = ("train", "validation")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    config = DataConfig(
        source=arguments.source,
        tokenizer=arguments.tokenizer,
        sequence_length=arguments.sequence_length,
        validation_fraction=arguments.validation_fraction,
        max_bad_rows=arguments.max_bad_rows,
        max_bytes=None,
        packing="planned",  # type: ignore[arg-type]
    )
    print("\n".join(prepare(config, arguments.output, arguments.workers, arguments.ray)))
    return 0


def prepare(config: DataConfig, output: Path, workers: int, ray: str = "") -> list[str]:
    """Writes the shards of `config.source` that are missing, then the manifest; returns a report.

    Args:
      config: what to read and how.
      output: folder of the shards; on a cluster, one that all machines share.
      workers: processes of this machine.
      ray: address of a Ray cluster to use instead; "" for none.

    Raises:
      DataError: for unusable input, or a folder with shards of another tokenizer or window.
    """
    description = describe(config, tokenizer_of(config))
    output.mkdir(parents=True, exist_ok=True)
    _claim(output, {"source": config.source, **description})
    inputs = row_files_of(config.source) or [config.source]
    make = functools.partial(_make_shard, config, output)
    items = list(enumerate(inputs))
    facts = map_on_ray(make, items, ray) if ray else map_in_processes(make, items, workers)
    facts, repeats = _without_repeats(facts, inputs)
    shards = {part: [Shard(**f[part]) for f in facts if f[part]["examples"]] for part in PARTS}
    if not shards["train"] or not shards["validation"]:
        raise DataError(f"source {config.source!r} holds too little to train and validate on")
    outcomes: collections.Counter[str] = collections.Counter()
    for fact in facts:
        outcomes.update(fact["outcomes"])
    bad = sum(fact["bad_rows"] for fact in facts)
    write_manifest(output, description, shards, outcomes=dict(outcomes), bad_rows=bad)
    return [
        *(note for fact in facts for note in fact["notes"]),
        *repeats,
        *(_summary(part, shards[part]) for part in PARTS),
    ]


def _without_repeats(
    facts: Sequence[dict[str, Any]], inputs: Sequence[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Facts of the files whose shards no file before them gave, and a note for each other one."""
    first: dict[tuple[str, ...], str] = {}
    kept, notes = [], []
    for fact, source in zip(facts, inputs, strict=True):
        content = tuple(fact[part]["sha256"] for part in PARTS)
        examples = sum(fact[part]["examples"] for part in PARTS)
        if examples and content in first:
            notes.append(f"{source}: repeats {first[content]}; {examples:,} examples left out")
            continue
        first.setdefault(content, source)
        kept.append(fact)
    return kept, notes


def _make_shard(config: DataConfig, output: Path, item: tuple[int, str]) -> dict[str, Any]:
    """Both parts of one input file; what a finished run of this function left is taken as it is."""
    number, source = item
    done = output / f"shard-{number:05d}.json"
    if done.is_file():
        facts: dict[str, Any] = json.loads(done.read_text())
        return facts
    samples = read_samples(source, config, may_be_empty=True)
    encoder = Encoder(config, tokenizer_of(config))
    parts: dict[str, list[Piece]] = {part: [] for part in PARTS}
    for sample in samples.samples:
        share = int(sample.digest[:16], 16) / 2**64
        part = PARTS[share < config.validation_fraction]
        parts[part] += [piece for piece in encoder.pieces(sample) if piece[0].size > 1]
    facts = {
        part: dataclasses.asdict(_write(output / f"{part}-{number:05d}.arrayrecord", pieces))
        for part, pieces in parts.items()
    }
    facts["outcomes"] = {str(outcome): count for outcome, count in encoder.outcomes.items()}
    facts["bad_rows"] = samples.bad.count
    empty = "" if samples.samples else f"{source}: holds nothing usable"
    notes = (samples.bad.summary(), encoder.summary(source), empty)
    facts["notes"] = [note for note in notes if note]
    temporary = done.with_suffix(".tmp")
    temporary.write_text(json.dumps(facts))
    temporary.rename(done)
    return facts


def _write(path: Path, pieces: Sequence[Piece]) -> Shard:
    module = optional_library("array_record.python.array_record_module", str(path))
    temporary = path.with_suffix(".tmp")
    writer = module.ArrayRecordWriter(str(temporary), "group_size:1")
    for ids, learnt in pieces:
        writer.write(encode(ids, learnt))
    writer.close()
    sizes = np.asarray([ids.size for ids, _ in pieces], np.int64)
    np.save(lengths_file(path), sizes)
    temporary.rename(path)
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return Shard(path.name, len(pieces), int(sizes.sum()), len(content), digest)


def _claim(output: Path, wanted: dict[str, Any]) -> None:
    """Notes what the folder is for, or refuses one that is for something else."""
    plan = output / "plan.json"
    if plan.is_file():
        found = json.loads(plan.read_text())
        differences = [
            f"{k}: {found.get(k)!r} -> {v!r}" for k, v in wanted.items() if found.get(k) != v
        ]
        if differences:
            raise DataError(
                f"--output {output} holds shards made otherwise: {'; '.join(differences)}; use "
                "another folder"
            )
    elif any(output.iterdir()):
        raise DataError(f"--output {output} is not empty and holds no prepared data; use another")
    plan.write_text(json.dumps(wanted, indent=2) + "\n")


def _summary(part: str, shards: Sequence[Shard]) -> str:
    examples, tokens = sum(s.examples for s in shards), sum(s.tokens for s in shards)
    return f"{part}: {examples:,} examples, {tokens:,} tokens in {len(shards):,} shards"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m zaya_jax.data.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", required=True, help="file, folder or URL; see docs/data.md")
    parser.add_argument("--output", required=True, type=Path, help=f"folder; {MANIFEST} comes last")
    parser.add_argument("--tokenizer", required=True, help="name or path of a tokenizer.json")
    parser.add_argument("--sequence-length", required=True, type=int, help="window of the run")
    parser.add_argument("--validation-fraction", type=float, default=0.001, help="share held out")
    parser.add_argument("--max-bad-rows", type=int, default=100, help="per file, before it stops")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument(
        "--ray",
        default="",
        metavar="ADDRESS",
        help='Ray cluster instead: "auto", "local", host:port',
    )
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ConfigError, DataError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
