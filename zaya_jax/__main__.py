"""Lists every command of the project with the first line of what it says about itself.

    python -m zaya_jax [WORD]
    source <(python -m zaya_jax --completion bash)

A WORD keeps the commands whose name or summary holds it. The second line lets the shell complete
their names and options.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from zaya_jax.completion import SHELLS, completion_script
from zaya_jax.installation import require_installed

PACKAGES = ("experiments", "zaya_jax", "kernels_pallas")


class Command(NamedTuple):
    """A module that runs with `python -m`."""

    module: str
    summary: str


def commands() -> Iterator[Command]:
    """All of them by name, found by reading the files; nothing is imported or run."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(root).rglob("*.py")):
                tree = ast.parse(path.read_text(encoding="utf-8"))
                name = ".".join([package, *path.relative_to(root).with_suffix("").parts])
                if (name := name.removesuffix(".__main__")) != __package__ and _runs(path, tree):
                    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
                    yield Command(name, summary)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the list; status 1 when no command holds the word."""
    parser = argparse.ArgumentParser(
        prog="python -m zaya_jax",
        description="Lists the commands of the project.",
        epilog="example:\n  python -m zaya_jax checkpoint",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("word", nargs="?", default="", help="only commands that mention this")
    parser.add_argument("--completion", choices=SHELLS, help="print a script for this shell")
    arguments = parser.parse_args(argv)
    if arguments.completion:
        require_installed()  # options are read from the commands' own parsers
        modules = [command.module for command in commands()]
        print(completion_script(modules, arguments.completion), end="")
        return 0
    word = arguments.word.lower()
    found = [c for c in commands() if word in c.module.lower() or word in c.summary.lower()]
    if not found:
        print(f"no command mentions {word!r}; python -m zaya_jax lists all")
        return 1
    width = max(len(command.module) for command in found)
    for command in found:
        print(f"python -m {command.module:{width}}  {command.summary}")
    print(
        "\nEach has --help with an example. Guides are in docs/, the map of the code in README.md."
    )
    return 0


def _runs(path: Path, tree: ast.Module) -> bool:
    """Whether `python -m` on the module does something."""
    guard = '__name__ == "__main__"'
    return path.name == "__main__.py" or any(
        isinstance(node, ast.If) and ast.unparse(node.test).replace("'", '"') == guard
        for node in tree.body
    )


if __name__ == "__main__":
    raise SystemExit(main())
