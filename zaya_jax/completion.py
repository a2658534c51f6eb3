"""Completion of the project's commands and their options in bash and zsh.

    source <(python -m zaya_jax --completion bash)

The names are read from the files, so that printing the script imports nothing.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

SHELLS = ("bash", "zsh")
_PROJECT = ("experiments.", "zaya_jax.", "kernels_pallas.")

_SCRIPT = """\
_zaya_jax() {
  local word=${COMP_WORDS[COMP_CWORD]} module="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    [[ ${COMP_WORDS[i]} == -m ]] && module=$((i + 1))
  done
  COMPREPLY=()
  [[ -z $module ]] && return
  if ((module == COMP_CWORD)); then
    COMPREPLY=($(compgen -W "MODULES" -- "$word"))
    return
  fi
  [[ $word != -* ]] && return
  case ${COMP_WORDS[module]} in
CASES
  esac
}
complete -o default -F _zaya_jax python python3
"""


def completion_script(modules: Iterable[str], shell: str) -> str:
    """The script for a shell.

    Args:
      modules: the commands.
      shell: one of `SHELLS`.
    """
    names = sorted(modules)
    cases = "\n".join(
        f'    {name}) COMPREPLY=($(compgen -W "{" ".join(options_of(name))}" -- "$word")) ;;'
        for name in names
    )
    script = _SCRIPT.replace("MODULES", " ".join(names)).replace("CASES", cases)
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script


def options_of(module: str) -> list[str]:
    """Long options that a command takes; `--config.FIELD` as `--config.`."""
    options = {"--help", *_reached(module, "", set())}
    if "--config" in options:
        options.add("--config.")
    return sorted(options)


def _reached(module: str, function: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    """What a function adds to parsers, itself or through functions of the project that it calls.

    Without a name: the whole module.
    """
    if (module, function) in seen:
        return
    seen.add((module, function))
    tree = _tree(module)
    own = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_PROJECT)
        for alias in node.names
    }
    part: ast.AST | None = own.get(function) if function else tree
    if part is None:
        return
    yield from _options(part)
    for node in ast.walk(part):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in own:
                yield from _reached(module, node.func.id, seen)
            elif node.func.id in imported:
                yield from _reached(*imported[node.func.id], seen)


@functools.cache
def _tree(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    path = Path(str(spec and spec.origin))
    main = path.with_name("__main__.py")
    is_package = path.name == "__init__.py" and main.exists()
    return ast.parse((main if is_package else path).read_text(encoding="utf-8"))


def _options(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument"
        ):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    yield str(argument.value)
