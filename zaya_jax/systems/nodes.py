"""Which machines a job runs on, and the commands that start its processes there.

    python -m zaya_jax.systems.supervise --nodes 'node[01-16]' --use 15 --preflight -- COMMAND

One supervisor, on any machine that sees the job's workdir, starts one process a node. `--on-node`
says how, with {node} and {command} in it:

    srun --nodelist={node} --nodes=1 --ntasks=1 --overlap {command}      the default
    ssh -tt {node} "cd /shared/zaya && {command}"
    kubectl exec {node} -- {command}

Where {command} is a word by itself it becomes the command's words; within a word it is quoted for
the shell that reads it there. The process on the first node is where the others find each other.
Nodes that fail their check before an attempt are left out of it; `--use` fewer than there are keeps
the others as spares.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from zaya_jax.config import ConfigError
from zaya_jax.systems.uptime import EventLog

ON_NODE = "srun --nodelist={node} --nodes=1 --ntasks=1 --overlap {command}"
_CHECK_SECONDS = 900  # that a node may take for its check
_PORTS = 64  # an attempt does not meet what is left of the one before


class NodesError(ConfigError):
    """Too few nodes are left."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Nodes, and how to run something on one."""

    names: tuple[str, ...]
    on_node: tuple[str, ...] = tuple(shlex.split(ON_NODE))
    use: int = 0  # nodes of an attempt; 0 = all that pass their check
    port: int = 8476  # of the first of them

    def __post_init__(self) -> None:
        if not any("{command}" in word for word in self.on_node):
            raise ConfigError(f"--on-node={shlex.join(self.on_node)!r}: must contain {{command}}")
        if not 0 <= self.use <= len(self.names):
            raise ConfigError(f"--use={self.use}: --nodes lists {len(self.names)}")

    def words(self, node: str, command: Sequence[str]) -> list[str]:
        """The command line that runs a command on a node."""
        found: list[str] = []
        for word in self.on_node:
            if word == "{command}":
                found += command
                continue
            found.append(word.replace("{node}", node).replace("{command}", shlex.join(command)))
        return found

    def commands(self, nodes: Sequence[str], command: Sequence[str], attempt: int) -> Any:
        """One command line for each process of an attempt."""
        coordinator = f"{nodes[0]}:{self.port + attempt % _PORTS}"
        return [
            self.words(node, [*command, *process_flags(coordinator, len(nodes), index)])
            for index, node in enumerate(nodes)
        ]

    def healthy(self, options: Sequence[str], events: EventLog) -> list[str]:
        """The nodes that pass `zaya_jax.systems.preflight`, checked at once, in their order."""
        check = [sys.executable, "-m", "zaya_jax.systems.preflight", *options]
        running = {
            node: subprocess.Popen(
                self.words(node, check), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for node in self.names
        }
        found = []
        for node, process in running.items():
            faults = _faults(process)
            events.write("preflight", node=node, faults=faults)
            if faults:
                print(f"supervisor: {node} is left out: {faults[0]}", flush=True)
            else:
                found.append(node)
        return found


def choose_nodes(cluster: Cluster, options: Sequence[str] | None, events: EventLog) -> list[str]:
    """The nodes of the next attempt; with `options`, of those that pass the check.

    Raises:
      NodesError: when fewer than `cluster.use` are left, or none.
    """
    nodes = list(cluster.names) if options is None else cluster.healthy(options, events)
    wanted = cluster.use or 1
    if len(nodes) < wanted:
        raise NodesError(
            f"{len(nodes)} of {len(cluster.names)} nodes pass their check, {wanted} are needed; "
            "mend one, or list more with --nodes"
        )
    return nodes[: cluster.use] if cluster.use else nodes


def process_flags(coordinator: str, processes: int, index: int) -> list[str]:
    """By which the processes of a job find each other; none for one."""
    if processes == 1:
        return []
    return [
        f"--coordinator={coordinator}",
        f"--processes={processes}",
        f"--process-id={index}",
    ]


def cluster_of(arguments: argparse.Namespace) -> Cluster | None:
    """What the command line says of nodes; None: this machine alone.

    Raises:
      ConfigError: for names or a template that cannot be read.
    """
    if not arguments.nodes:
        return None
    if arguments.processes != 1:
        raise ConfigError(f"--processes={arguments.processes}: --nodes start one process each")
    try:
        on_node = tuple(shlex.split(arguments.on_node))
    except ValueError as error:
        raise ConfigError(f"--on-node={arguments.on_node!r}: {error}") from None
    return Cluster(node_names(arguments.nodes), on_node, arguments.use, arguments.port)


def node_names(text: str) -> tuple[str, ...]:
    """`a,b` or SLURM's short form, `gpu[01-03,7],login`, as names.

    Raises:
      ConfigError: for anything else, and for a name given twice.
    """
    names: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\[\]]*\])?|.", text):
        if part == ",":
            continue
        match = re.fullmatch(r"([\w.\-]+)(?:\[([\d,\-]+)\])?", part)
        if match is None:
            raise ConfigError(f"--nodes={text!r}: cannot read {part!r}; give a,b or node[1-4]")
        stem, numbers = match.groups()
        names += [stem + number for number in _numbers(numbers)] if numbers else [stem]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"--nodes={text!r}: must name nodes, each once")
    return tuple(names)


def _numbers(text: str) -> list[str]:
    """`01-03,7` as 01, 02, 03, 7."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise ConfigError(f"--nodes: cannot read the numbers {text!r}")
        found += [f"{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1)]
    return found


def _faults(check: subprocess.Popen[str]) -> list[Any]:
    """What a node's check found; a check that says nothing is a fault."""
    try:
        output, errors = check.communicate(timeout=_CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        check.kill()
        check.communicate()
        return [f"no answer within {_CHECK_SECONDS} s"]
    try:
        return json.loads(output.strip().splitlines()[-1])["faults"]
    except (IndexError, ValueError, KeyError, TypeError):
        return [f"the check did not run: {errors.strip()[-300:]}"]
