"""Plans a training run on a cluster: memory, FLOPs, exchanges, step time, storage.

    python -m zaya_jax.systems.plan --config experiments/configs/zaya1_8b.py:pretrain1 \\
        --hardware mi300x --devices 1024

Plans the mesh of the config when it names one (`--config.mesh.fsdp=8`), otherwise the best meshes
it finds. Everything is closed form unless `--compile` is given: then XLA partitions the real
training step over as many virtual devices, and its memory and exchanges stand beside the formulas'.
`--compile gpu` uses XLA's compiler for the hardware itself, which need not be there (extra `aot`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.config import ConfigError
from zaya_jax.model_size import parameter_count, training_flops_per_token
from zaya_jax.parallel.settings import MESH_AXES, MeshConfig
from zaya_jax.systems import compiled
from zaya_jax.systems.command import make_parser, parse_with_config
from zaya_jax.systems.hardware import Hardware, hardware_names, load_hardware
from zaya_jax.systems.memory import device_memory
from zaya_jax.systems.mends import find_shortage
from zaya_jax.systems.mesh_search import Candidate, candidates
from zaya_jax.systems.plan_report import print_plan
from zaya_jax.systems.storage import read_load, save_seconds
from zaya_jax.training.settings import RunConfig

_MOST_DEVICES = 1_000_000  # several times the largest cluster there is


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments, config = parse_with_config(_parser(), argv)
    hardware = load_hardware(arguments.hardware)
    if not 1 <= arguments.devices <= _MOST_DEVICES:
        raise ConfigError(f"--devices={arguments.devices}: must be 1 to {_MOST_DEVICES:,}")
    found = candidates(config, arguments.devices, hardware, arguments.meshes)
    facts = plan_facts(config, hardware, found, arguments)
    if arguments.compile:
        facts["compiled"] = _compile(config, found[0], arguments)
    if arguments.json:
        print(json.dumps(facts, indent=2))
    else:
        print_plan(facts)
    return 0


def plan_facts(
    config: RunConfig,
    hardware: Hardware,
    found: list[Candidate],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Everything the plan says, as plain values."""
    best = found[0]
    shortage = find_shortage(config, arguments.devices, hardware, best)
    sequence = config.data.sequence_length
    tokens = config.data.batch_size * sequence
    budget = arguments.tokens or tokens * config.train.steps
    writers = max(arguments.devices // hardware.devices_per_node, 1)
    whole = device_memory(config, dict.fromkeys(MESH_AXES, 1))
    state = whole.parameters + whole.optimizer + whole.host_optimizer + whole.balancing
    seconds = arguments.step_seconds or best.time.slowest
    reads = read_load(
        config.data.batch_size,
        sequence,
        seconds,
        most_reads_per_second=arguments.iops,
        scatter=arguments.scatter,
    )
    return {
        "hardware": hardware.name,
        "devices": arguments.devices,
        "parameters": parameter_count(config.model),
        "tokens_per_step": tokens,
        "training_flops_per_token": training_flops_per_token(config.model, sequence),
        "budget_tokens": budget,
        "meshes": [_candidate_facts(one, config, hardware, budget, tokens) for one in found],
        "shortage": None if shortage is None else dataclasses.asdict(shortage),
        "checkpoint": {
            "bytes": state,
            "writers": writers,
            "seconds": save_seconds(state, writers, arguments.storage_gb_s),
        },
        "storage": dataclasses.asdict(reads) | {"step_seconds": seconds, "iops": arguments.iops},
    }


def _candidate_facts(
    one: Candidate, config: RunConfig, hardware: Hardware, budget: float, tokens: int
) -> dict[str, Any]:
    memory, time = one.memory, one.time
    return {
        "mesh": one.mesh,
        "fits": one.fits,
        "bytes": dataclasses.asdict(memory),
        "total_bytes": memory.total,
        "state_bytes": memory.state,
        "host_bytes": memory.on_host,
        "sent_bytes": one.sent,
        "exchange_seconds": time.exchange_seconds,
        "products_seconds": [time.plateau_seconds, time.sized_seconds],
        "memory_seconds": time.memory_seconds,
        "step_seconds": [time.fastest, time.slowest],
        "bound": time.bound,
        "tokens_per_second": [tokens / time.slowest, tokens / time.fastest],
        "days": [budget / tokens * seconds / 86_400 for seconds in (time.fastest, time.slowest)],
        "mfu": [
            time.model_flops / (seconds * hardware.peak_bf16_tflops * 1e12)
            for seconds in (time.slowest, time.fastest)
        ],
        "flops_per_device": time.model_flops,
    }


def _compile(config: RunConfig, best: Candidate, arguments: argparse.Namespace) -> dict[str, Any]:
    config = dataclasses.replace(config, mesh=MeshConfig(**best.mesh))
    if arguments.compile == "gpu":
        found = compiled.compile_step(config, arguments.hardware, arguments.devices)
    else:
        compiled.use_virtual_devices(arguments.devices)
        found = compiled.compile_step(config)
    return dataclasses.asdict(found) | {"backend": arguments.compile}


def _parser() -> Parser:
    parser = make_parser(
        "plan",
        "Memory, FLOPs, exchanges, step time and storage of a training run on a cluster.",
        "--config experiments/configs/zaya1_8b.py:pretrain1 --hardware mi300x --devices 1024",
    )
    parser.add_argument("--hardware", required=True, help=", ".join(hardware_names()))
    parser.add_argument("--devices", required=True, type=int, metavar="N", help="of the cluster")
    parser.add_argument("--meshes", type=int, default=3, metavar="N", help="best meshes to show")
    parser.add_argument("--tokens", type=float, help="budget; default: those of the config's steps")
    parser.add_argument("--step-seconds", type=float, help="for the reads of storage; else ours")
    parser.add_argument("--iops", type=float, default=70_000, help="reads/s storage sustains")
    parser.add_argument("--scatter", type=float, default=1.0, help="sigma of scattered reads")
    parser.add_argument(
        "--storage-gb-s", type=float, default=12.5, help="GB/s one node writes checkpoints with"
    )
    parser.add_argument(
        "--compile",
        nargs="?",
        const="cpu",
        choices=("cpu", "gpu"),
        help="partition the real step over N virtual devices; gpu: by the compiler for --hardware",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
