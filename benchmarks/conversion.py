"""Conversion of a full-size checkpoint: speed and memory, beside `cp` and a plain Orbax save.

    python benchmarks/conversion.py --folder DIR [--layers 40] [--keep]

Writes random bfloat16 weights of ZAYA1-8B's geometry (17.7 GB with all 40 layers) in the zyphra
layout, converts them to Orbax and on to the transformers layout, copies the source with `cp`, and
lets Orbax save one array of 1 GB the usual way. Every job is a process of its own: its peak of
anonymous memory (what it holds beyond the page cache) is sampled from /proc, its peak resident size
is the kernel's. Every job ends when its files are on the disk. DIR needs about twice the size
beside the source: results are compared and removed as soon as they have served.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from zaya_jax.checkpoint.hub_config import CONFIG_FILE
from zaya_jax.checkpoint.hub_writer import HubWriter
from zaya_jax.checkpoint.layouts import ZYPHRA
from zaya_jax.checkpoint.reader import block_shape, blocks
from zaya_jax.checkpoint.released_keys import hub_config_keys
from zaya_jax.config import ModelConfig
from zaya_jax.presets import zaya1_8b

EXPECTED = {"tensors": {"zyphra": 2_483, "transformers": 1_283}, "parameters": 8_840_489_464}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SHARD_BYTES = 5_000_000_000
PLAIN_SAVE_BYTES = 1_000_000_000
SAMPLE_SECONDS = 0.05
ROOM = 2.2  # times the source, beside it: Orbax and the copy or the export

PLAIN_SAVE = """
import sys
import jax, jax.numpy as jnp
import orbax.checkpoint as ocp
bits = jax.random.bits(jax.random.key(0), (int(sys.argv[2]) // 2,), jnp.uint16)
array = jax.lax.bitcast_convert_type(bits & 0xBFFF, jnp.bfloat16)  # any finite number
array.block_until_ready()
print("ready", flush=True)
sys.stdin.readline()
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(sys.argv[1], {"array": array})
"""


def write_source(folder: Path, config: ModelConfig) -> None:
    """Random weights in the zyphra layout, every bit pattern of a finite small number."""
    rng = np.random.default_rng(0)
    pool = (0.02 * rng.standard_normal(1 << 26, np.float32)).astype(BFLOAT16)
    rules = ZYPHRA.rules(config)
    folder.mkdir(parents=True)
    dtypes = {rule.path: BFLOAT16 for rule in rules}
    writer = HubWriter(folder, config, rules, dtypes, SHARD_BYTES)
    for rule in rules:
        shape = rule.shape(config)
        for index in blocks(shape, block_shape(shape, 2, 64 << 20)):
            size = tuple(part.stop - part.start for part in index)
            start = int(rng.integers(0, len(pool) - math.prod(size)))
            writer.write(rule.path, index, pool[start : start + math.prod(size)].reshape(size))
    writer.finish(hub_config_keys(config, ZYPHRA, {}, "bfloat16"), {})
    os.sync()


def measure(command: list[str], *, waits: bool = False) -> dict[str, float]:
    """Runs a command to its end and the disk; seconds and peaks of its memory in bytes."""
    pipe = subprocess.PIPE if waits else subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=pipe, stdout=subprocess.PIPE, text=True)
    if waits:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # the arrays are made, saving begins now
        process.stdin.write("\n")
        process.stdin.flush()
    start, peaks = time.perf_counter(), {"RssAnon": 0, "VmRSS": 0}
    while process.poll() is None:
        for name, size in memory(process.pid).items():
            peaks[name] = max(peaks[name], size)
        time.sleep(SAMPLE_SECONDS)
    if process.returncode != 0:
        sys.exit(f"error: {' '.join(command[:4])} failed with status {process.returncode}")
    os.sync()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "anonymous": peaks["RssAnon"], "resident": peaks["VmRSS"]}


def memory(process_id: int) -> dict[str, int]:
    """Resident memory of a process now, all of it and the part beyond the page cache."""
    try:
        lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    return {n: int(fields[n].split()[0]) * 1024 for n in ("RssAnon", "VmRSS") if n in fields}


def run(folder: Path, layers: int) -> dict[str, Any]:
    """All measurements, and the checks that make them worth something."""
    config = zaya1_8b().replace(num_layers=layers)
    source, orbax, export = folder / "source", folder / "orbax", folder / "export"
    write_source(source, config)
    nbytes = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    check_counts(source, config, layers)
    convert = [sys.executable, "-m", "zaya_jax.checkpoint.convert"]
    jobs: dict[str, tuple[int, Callable[[], dict[str, float]]]] = {
        "cp": (nbytes, lambda: measure(["cp", "-r", str(source), str(folder / "copy")])),
        "zyphra to orbax": (nbytes, lambda: measure([*convert, str(source), str(orbax)])),
        "orbax to transformers": (nbytes, lambda: measure([*convert, str(orbax), str(export)])),
        "plain Orbax save, 1 GB": (PLAIN_SAVE_BYTES, lambda: plain_save(folder / "plain")),
    }
    results: dict[str, Any] = {"layers": layers, "bytes": nbytes, "jobs": {}}
    for name, (size, job) in jobs.items():
        drop_caches()
        result = job()
        results["jobs"][name] = {**result, "gb_per_second": size / 1e9 / result["seconds"]}
        print(line(name, results["jobs"][name]), flush=True)
        for finished in ("copy", "plain"):
            shutil.rmtree(folder / finished, ignore_errors=True)
        if name == "zyphra to orbax":
            check_orbax(orbax, config)
    verify = [sys.executable, "-m", "zaya_jax.checkpoint.verify", str(source), str(export)]
    results["jobs"]["verify source and export"] = measure(verify)
    check_counts(export, config, layers)
    return results


def plain_save(folder: Path) -> dict[str, float]:
    command = [sys.executable, "-c", PLAIN_SAVE, str(folder.absolute()), str(PLAIN_SAVE_BYTES)]
    return measure(command, waits=True)


def drop_caches() -> None:
    """Reads begin at the disk, where that may be asked for."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        print("note: page cache not dropped (needs root): reads may come from memory", flush=True)


def check_counts(folder: Path, config: ModelConfig, layers: int) -> None:
    """Tensors and parameters counted in the headers themselves."""
    shapes = {}
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__")
        shapes.update({name: entry["shape"] for name, entry in header.items()})
    parameters = sum(math.prod(shape) for shape in shapes.values())
    layout = (
        "zyphra" if "num_query_groups" in (folder / CONFIG_FILE).read_text() else "transformers"
    )
    print(
        f"{folder.name}: {len(shapes):,} tensors, {parameters:,} parameters ({layout})", flush=True
    )
    if layers == zaya1_8b().num_layers:
        assert len(shapes) == EXPECTED["tensors"][layout]
        assert parameters == EXPECTED["parameters"]


def check_orbax(folder: Path, config: ModelConfig) -> None:
    """Orbax itself sees every array at its shape."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as reader:
        found = reader.metadata((folder / "variables").absolute()).item_metadata.tree
    expert_stack = found["params"]["layers"]["experts"]["gate_up"]
    rule = next(r for r in ZYPHRA.rules(config) if r.path[-1] == "gate_up")
    assert tuple(expert_stack.shape) == rule.shape(config)


def line(name: str, result: dict[str, float]) -> str:
    return (
        f"{name:<26} {result['seconds']:>8.1f} s {result['gb_per_second']:>8.3f} GB/s   "
        f"anonymous {result['anonymous'] / 1e9:>6.2f} GB   "
        f"resident {result['resident'] / 1e9:.2f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="where to work; must not exist")
    parser.add_argument("--layers", type=int, help="default: as many of the 40 as fit the disk")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoints in the folder")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} exists; give a new folder")
    layers = options.layers or layers_that_fit(options.folder.absolute().parent)
    options.folder.mkdir(parents=True)
    try:
        results = run(options.folder, layers)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    finally:
        if not options.keep:
            shutil.rmtree(options.folder)


def layers_that_fit(place: Path) -> int:
    """Layers for whose source and results there is room."""
    existing = next(path for path in (place, *place.parents) if path.exists())
    whole = 2 * EXPECTED["parameters"] * (1 + ROOM)
    share = shutil.disk_usage(existing).free / whole
    return max(1, min(zaya1_8b().num_layers, int(share * zaya1_8b().num_layers)))


if __name__ == "__main__":
    main()
