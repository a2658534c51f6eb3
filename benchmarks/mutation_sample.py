"""Do the tests notice a wrong program? Draws small edits of the source and runs the tests on each.

    python benchmarks/mutation_sample.py --per-area 10 --seed 0

An edit (`benchmarks/mutants.py` says which kinds there are) is made in a copy of the tree; the
tests of its file run there, quick ones first, until the first failure. An edit that no test notices
survives, and is printed with its line. Areas and their tests stand below. Edits that are listed as
equivalent, each with its proof, are reported and count nowhere; any other survivor counts.
`--list` prints what would be tried.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutants import ROOT, Mutant, mutants_of, reason_of

# The quickest tests that run the whole model, then those of its parts.
_MODEL = (
    "tests/model/test_block.py",
    "tests/model/test_linear.py",
    "tests/model/test_transformer_inputs.py",
    *(
        f"tests/parity/test_transformers.py::{test}[{case}]"
        for case in ("base", "sliding", "attention_bias", "untied_head_bias", "one_layer")
        for test in ("test_every_layer_routes_and_computes_like_the_reference",)
    ),
    "tests/model/test_attention_variants.py",
    "tests/model/test_router_variants.py",
    "tests/model/test_transformer.py",
    "tests/parity/test_transformers.py",
    "--golden",
)

# Of each area: files, and the tests that run them, in this order.
AREAS: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "model": (
        (
            tuple(
                f"zaya_jax/model/{name}.py"
                for name in (
                    *("attention", "block", "cca", "cca_parts", "experts", "gqa", "linear", "mla"),
                    *("norm", "outputs", "projection", "rope", "router", "transformer"),
                )
            ),
            _MODEL,
        ),
    ),
    "losses": (
        (("zaya_jax/training/loss.py",), ("tests/training/test_step.py",)),
        (
            tuple(
                f"zaya_jax/rl/losses/{name}.py"
                for name in ("cispo", "dppo", "gspo", "ppo", "tokens")
            ),
            ("tests/rl/test_losses.py",),
        ),
        (("zaya_jax/rl/aggregation.py",), ("tests/rl/test_aggregation.py",)),
        (("zaya_jax/rl/length_reward.py",), ("tests/rl/test_length_reward.py",)),
    ),
    "dispatch": (
        (
            tuple(f"kernels_pallas/{name}.py" for name in ("expert_buckets", "expert_dispatch")),
            (
                "tests/kernels_pallas/test_expert_dispatch.py",
                "tests/kernels_pallas/test_expert_mlp.py",
            ),
        ),
    ),
    "packing": (
        (
            ("zaya_jax/data/packing.py", "zaya_jax/data/packing_plan.py"),
            ("tests/data/test_packing_plan.py", "tests/data/test_packing.py"),
        ),
        (("zaya_jax/rl/packing.py",), ("tests/rl/test_packing.py",)),
    ),
    "sampling": (
        (("zaya_jax/inference/sampling.py",), ("tests/inference/test_sampling.py",)),
        (("zaya_jax/inference/sample.py",), ("tests/inference/test_sample.py",)),
    ),
}


def main() -> int:
    """Draws and tries the mutants of every area; status 1 below the wanted share."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--per-area", type=int, default=10, help="mutants of each area")
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300, help="after which a mutant is killed")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    arguments = parser.parse_args()
    if arguments.list:
        for area in arguments.areas:
            for mutant, _ in _drawn(area, ROOT, arguments):
                print(f"{area}: {mutant}{_why(mutant)}")
        return 0
    killed = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        for name in (
            "zaya_jax",
            "kernels_pallas",
            "experiments",
            "tests",
            "pyproject.toml",
            "docs",
        ):
            source = ROOT / name
            (shutil.copytree if source.is_dir() else _copy)(source, tree / name)
        for area in arguments.areas:
            noticed, counted = _try_area(area, tree, arguments)
            killed, tried = killed + noticed, tried + counted
    print(f"{killed} of {tried} noticed ({killed / max(tried, 1):.0%})")
    return 0 if killed >= 0.9 * tried else 1


def _drawn(
    area: str, root: Path, arguments: argparse.Namespace
) -> list[tuple[Mutant, tuple[str, ...]]]:
    """The sample of an area with the tests of each; equal arguments and source give equal ones."""
    mutants = [
        (mutant, tests)
        for files, tests in AREAS[area]
        for file in files
        for mutant in mutants_of(file, root)
    ]
    generator = random.Random(f"{arguments.seed} {area}")
    return generator.sample(mutants, min(arguments.per_area, len(mutants)))


def _why(mutant: Mutant) -> str:
    reason = reason_of(mutant)
    return f"  (equivalent: {reason})" if reason else ""


def _try_area(area: str, tree: Path, arguments: argparse.Namespace) -> tuple[int, int]:
    """How many mutants of an area the tests noticed, and how many that could be noticed."""
    drawn = _drawn(area, tree, arguments)
    for tests in sorted({tests for _, tests in drawn}):
        if not _passes(tree, tests, arguments.seconds):
            raise SystemExit(f"{' '.join(tests)} fail without any edit")
    noticed = counted = 0
    for mutant, tests in drawn:
        if why := _why(mutant):
            print(f"  not counted: {mutant}{why}", flush=True)
            continue
        counted += 1
        if _survives(tree, mutant, tests, arguments):
            print(f"  survived: {mutant}", flush=True)
        else:
            noticed += 1
    print(f"{area}: {noticed} of {counted} noticed", flush=True)
    return noticed, counted


def _survives(
    tree: Path, mutant: Mutant, tests: tuple[str, ...], arguments: argparse.Namespace
) -> bool:
    path = tree / mutant.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(mutant.made_in(whole), encoding="utf-8")
    try:
        return _passes(tree, tests, arguments.seconds)
    finally:
        path.write_text(whole, encoding="utf-8")


def _passes(tree: Path, tests: tuple[str, ...], seconds: float) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    # What an edit does not touch is compiled once for all.
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tree.parent / "compiled")}
    environment = {**cache, **os.environ, "PYTHONPATH": str(tree)}
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
