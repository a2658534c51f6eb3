"""Checks whether a geometry suits an accelerator; every finding shows its arithmetic.

    python -m zaya_jax.systems.sizing --config experiments/configs/zaya1_8b.py:pretrain1 \\
        --devices 1024

The rules come from arXiv 2511.17127 and arXiv 2510.04476 as far as they are published there, and
from what matrix units and links need. A finding is advice: the status is 0 unless `--strict`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.config import ModelConfig
from zaya_jax.systems.command import make_parser, parse_with_config, print_table
from zaya_jax.systems.hardware import Hardware, hardware_names, load_hardware
from zaya_jax.systems.memory import device_memory
from zaya_jax.systems.step_time import layer_products
from zaya_jax.training.settings import RunConfig


@dataclasses.dataclass(frozen=True)
class Finding:
    """One rule applied to one geometry."""

    rule: str
    holds: bool
    arithmetic: str
    mend: str  # empty where the rule holds


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = _parser()
    arguments, config = parse_with_config(parser, argv)
    names = arguments.hardware or hardware_names()
    mesh = config.mesh.sizes(arguments.devices)
    found = {name: lint(config, mesh, load_hardware(name)) for name in names}
    if arguments.json:
        plain = {name: [dataclasses.asdict(one) for one in part] for name, part in found.items()}
        print(json.dumps(plain, indent=2))
    else:
        for name, findings in found.items():
            rows = [
                ("ok" if one.holds else "ADVICE", one.rule, one.arithmetic, one.mend)
                for one in findings
            ]
            print_table(f"\n{name}", ("", "rule", "arithmetic", "mend"), rows, left=4)
    is_clean = all(one.holds for part in found.values() for one in part)
    return 1 if arguments.strict and not is_clean else 0


def lint(config: RunConfig, mesh: dict[str, int], hardware: Hardware) -> list[Finding]:
    """All findings for one accelerator."""
    model = config.model
    return [
        _multiple("head_dim fills matrix units", "head_dim", model, hardware.head_dim_multiple),
        _multiple("vocabulary fills matrix units", "vocab_size", model, hardware.vocab_multiple),
        _multiple("hidden size fills tiles", "hidden_size", model, 256),
        _multiple("expert width fills tiles", "expert_intermediate_size", model, 256),
        _local_width(model, mesh),
        _kv_heads(model, mesh),
        _plateau(config, mesh, hardware),
        *_whole_nodes(mesh, hardware),
        _fits(config, mesh, hardware),
    ]


def _multiple(rule: str, field: str, model: ModelConfig, unit: int) -> Finding:
    size = getattr(model, field)
    whole, rest = divmod(size, unit)
    text = f"{field} {size:,} = {whole:,} x {unit}" + (f" + {rest}" if rest else "")
    mend = "" if not rest else f"use {whole * unit or unit:,} or {(whole + 1) * unit:,}"
    return Finding(rule, not rest, text, mend)


def _local_width(model: ModelConfig, mesh: dict[str, int]) -> Finding:
    width = model.expert_intermediate_size / mesh["tensor"]
    text = f"{model.expert_intermediate_size:,} / tensor {mesh['tensor']} = {width:,.0f}"
    holds = width % 128 == 0
    return Finding(
        "a device's part of an expert fills tiles of 128",
        holds,
        text,
        "" if holds else "use fewer tensor parts",
    )


def _kv_heads(model: ModelConfig, mesh: dict[str, int]) -> Finding:
    """As many KV heads as tensor ranks is the best layout: arXiv 2510.04476."""
    heads, tensor = model.num_kv_heads, mesh["tensor"]
    text = f"{heads} KV heads / tensor {tensor} = {heads / tensor:g} for each device"
    mend = "" if heads % tensor == 0 else f"tensor must divide {heads}: a KV group is not split"
    return Finding("KV heads divide over tensor ranks", heads % tensor == 0, text, mend)


def _plateau(config: RunConfig, mesh: dict[str, int], hardware: Hardware) -> Finding:
    product = next(p for p in layer_products(config, mesh) if p.name == "expert gate and up")
    model, plateau = config.model, hardware.gemm_plateau_gflop
    width = model.expert_intermediate_size // mesh["tensor"]
    per_token = 4 * model.hidden_size * width
    tokens = product.flops / per_token
    needed = plateau * 1e9 / per_token
    text = (
        f"{tokens:,.0f} tokens on an expert x {per_token / 1e6:.1f} MFLOP = "
        f"{product.flops / 1e9:,.1f} GFLOP; the plateau is at {plateau:g} GFLOP or "
        f"{needed:,.0f} tokens"
    )
    holds = tokens >= needed
    mend = f"{needed / tokens:.1f} times the tokens: mesh.expert, larger batches, a grouped product"
    return Finding("an expert's product reaches the plateau", holds, text, "" if holds else mend)


def _whole_nodes(mesh: dict[str, int], hardware: Hardware) -> list[Finding]:
    """Collectives of part of a node use part of its links, where links join pairs of devices."""
    findings, stride = [], 1
    for axis in reversed(list(mesh)):
        size, node = mesh[axis], hardware.devices_per_node
        inside = min(size, max(node // stride, 1))
        if size > 1 and stride < node:
            reached = hardware.fabric_gb_s(inside)
            whole = hardware.fabric_gb_s(node)
            links = inside - 1 if hardware.node_fabric == "mesh" else 1
            text = (
                f"{axis} {size}: {inside} devices of a node, {links} x {hardware.link_gb_s:g} x "
                f"{hardware.achieved_fabric_share:g} = {reached:.0f} of {whole:.0f} GB/s"
            )
            holds = reached >= whole
            mend = "" if holds else f"give {axis} the {node} devices of a node, or none of it"
            findings.append(Finding(f"exchanges over {axis} use whole nodes", holds, text, mend))
        stride *= size
    return findings


def _fits(config: RunConfig, mesh: dict[str, int], hardware: Hardware) -> Finding:
    memory = device_memory(config, mesh)
    total, room = memory.total / 1e9, 0.9 * hardware.memory_gb
    text = (
        f"state {memory.state / 1e9:,.1f} + gradients {memory.gradients / 1e9:,.1f} + activations "
        f"and workspace {(memory.total - memory.state - memory.gradients) / 1e9:,.1f} = "
        f"{total:,.1f} of 0.9 x {hardware.memory_gb:g} GB"
    )
    holds = total <= room
    mend = "" if holds else "mesh.fsdp, train.microbatches, model.remat or optimizer.offload_state"
    return Finding("a device's memory holds its part", holds, text, mend)


def _parser() -> Parser:
    parser = make_parser(
        "sizing",
        "Checks whether a geometry suits an accelerator, with the arithmetic of every finding.",
        "--config experiments/configs/zaya1_8b.py:pretrain1 --devices 1024 --hardware mi300x",
    )
    parser.add_argument("--hardware", action="append", help=", ".join(hardware_names()))
    parser.add_argument("--devices", type=int, default=8, metavar="N", help="default: one node")
    parser.add_argument("--strict", action="store_true", help="status 1 when a rule is broken")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
