"""Do the tests notice a wrong program? Draws small edits of the source and runs the tests on each.

    python benchmarks/mutation_sample.py --per-area 10 --seed 0

An edit turns one comparison, operator, number or truth value into another. It is made in a copy of
the tree; the tests of its area run there until the first failure. An edit that no test notices
survives, and is printed with its line. Areas and their tests stand below. A reader decides whether
a survivor is equivalent; the share counts it as a survivor all the same.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
AREAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "model": (
        tuple(
            f"zaya_jax/model/{name}.py"
            for name in ("attention", "block", "cca", "experts", "norm", "rope", "router")
        ),
        ("tests/parity/test_transformers.py", "tests/model"),
    ),
    "losses": (
        (
            "zaya_jax/training/loss.py",
            "zaya_jax/rl/losses/dppo.py",
            "zaya_jax/rl/losses/ppo.py",
            "zaya_jax/rl/aggregation.py",
            "zaya_jax/rl/length_reward.py",
        ),
        (
            "tests/training/test_step.py",
            "tests/rl/test_losses.py",
            "tests/rl/test_aggregation.py",
            "tests/rl/test_length_reward.py",
        ),
    ),
    "dispatch": (
        ("zaya_jax/model/experts.py", "kernels_pallas/expert_buckets.py"),
        ("tests/kernels_pallas/test_expert_mlp.py", "tests/model/test_transformer.py"),
    ),
    "packing": (
        ("zaya_jax/data/packing.py", "zaya_jax/data/packing_plan.py", "zaya_jax/rl/packing.py"),
        (
            "tests/data/test_packing.py",
            "tests/data/test_packing_plan.py",
            "tests/rl/test_packing.py",
        ),
    ),
    "sampling": (
        ("zaya_jax/inference/sampling.py", "zaya_jax/inference/sample.py"),
        ("tests/inference/test_sampling.py", "tests/inference/test_sample.py"),
    ),
}
_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


class Mutant(NamedTuple):
    """One edit: the whole file with it, and what it did."""

    file: str
    source: str
    what: str


def main() -> int:
    """Draws and tries the mutants of every area; status 1 below the wanted share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-area", type=int, default=10, help="mutants of each area")
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300, help="after which a mutant is killed")
    arguments = parser.parse_args()
    killed = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        names = ("zaya_jax", "kernels_pallas", "experiments", "tests", "pyproject.toml", "docs")
        for name in names:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else _copy)(source, tree / name)
        for area in arguments.areas:
            files, tests = AREAS[area]
            if not _passes(tree, tests, arguments.seconds):
                raise SystemExit(f"the tests of {area} fail without any edit")
            mutants = [mutant for file in files for mutant in mutants_of(file)]
            drawn = random.Random(f"{arguments.seed} {area}").sample(
                mutants, min(arguments.per_area, len(mutants))
            )
            survivors = [mutant for mutant in drawn if _survives(tree, mutant, tests, arguments)]
            killed, tried = killed + len(drawn) - len(survivors), tried + len(drawn)
            print(f"{area}: {len(drawn) - len(survivors)} of {len(drawn)} noticed", flush=True)
            for mutant in survivors:
                print(f"  survived: {mutant.file}: {mutant.what}", flush=True)
    print(f"{killed} of {tried} noticed ({killed / tried:.0%})")
    return 0 if killed >= 0.9 * tried else 1


def mutants_of(file: str) -> Iterator[Mutant]:
    """Every edit of a file, its annotations, docstrings and error texts left alone."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for index, node in enumerate(_nodes(tree)):
        edited = copy.deepcopy(tree)
        twin = list(_nodes(edited))[index]
        before = ast.unparse(node)
        if _edit(twin):
            what = f"line {getattr(node, 'lineno', 0)}: {before} -> {ast.unparse(twin)}"
            yield Mutant(file, ast.unparse(edited) + "\n", what)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that decide what is computed, in a fixed order."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Raise | ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.AST):
                yield child
                yield from _nodes(child)


def _edit(node: ast.AST) -> bool:
    """Changes the node, if it is of a kind that can be changed."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        node.ops[0] = _COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPERATORS:
        node.op = _OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value = node.value + 1
    else:
        return False
    return True


def _survives(
    tree: Path, mutant: Mutant, tests: tuple[str, ...], arguments: argparse.Namespace
) -> bool:
    path = tree / mutant.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(mutant.source, encoding="utf-8")
    try:
        return _passes(tree, tests, arguments.seconds)
    finally:
        path.write_text(whole, encoding="utf-8")


def _passes(tree: Path, tests: tuple[str, ...], seconds: float) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:  # an edit that never ends is noticed
        return False
    return done.returncode == 0


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


if __name__ == "__main__":
    sys.exit(main())
