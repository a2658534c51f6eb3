"""Small edits of a source file, one at a time: what a slip of the hand would have written.

Kinds: a comparison's edge or its opposite, an operator for its inverse, a number one higher, a
truth value turned, a condition negated, a `not`, `~` or minus dropped, least for most, and the two
values of a `where` exchanged.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_CALLS = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum",
    "argmin": "argmax", "argmax": "argmin", "any": "all", "all": "any",
}  # fmt: skip


class Mutant(NamedTuple):
    """One edit: which node of the file it changes, the line it is in, and what it does there."""

    file: str
    index: int  # of the node among those that decide what is computed
    line: int
    text: str
    what: str

    def made_in(self, whole: str) -> str:
        """The file's source with the edit."""
        tree = ast.parse(whole)
        _edit(list(_nodes(tree))[self.index])
        return ast.unparse(tree) + "\n"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


class Equivalent(NamedTuple):
    """An edit that changes nothing any caller can see, and why."""

    file: str
    text: str  # of the line, without indentation
    what: str
    reason: str


EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        "zaya_jax/data/packing.py",
        "if len(rows) < batch_size:",
        "len(rows) < batch_size -> len(rows) <= batch_size",
        "a full batch gets no row more: padding by zero rows copies it",
    ),
    *(
        Equivalent(
            "zaya_jax/data/packing_plan.py",
            "if top[rest] < 0:",
            what,
            "sets bits that are set already where a window stands on the stack",
        )
        for what in ("top[rest] < 0 -> top[rest] <= 0", "0 -> 1")
    ),
    Equivalent(
        "zaya_jax/rl/length_reward.py",
        "share = (lengths > shortest).astype(float)",
        "lengths > shortest -> lengths >= shortest",
        "differs where an answer is as long as the shortest; there the term is 1/2 for any share",
    ),
    *(
        Equivalent(
            "zaya_jax/inference/sampling.py",
            "scaled = below / jnp.where(rows.temperature > 0, rows.temperature, 1.0)[:, None]",
            what,
            "differs in rows without temperature only, and what is drawn for those is dropped",
        )
        for what in ("rows.temperature > 0 -> rows.temperature >= 0", "1.0 -> 2.0")
    ),
    Equivalent(
        "zaya_jax/model/transformer.py",
        "elif config.num_layers > 1:",
        "config.num_layers > 1 -> config.num_layers >= 1",
        "with one layer it appends an array of no rows",
    ),
    Equivalent(
        "zaya_jax/model/transformer.py",
        "widths = np.where(sliding, config.sliding_window or 0, _NO_WINDOW)",
        "0 -> 1",
        "never read: a config with sliding layers and without a window is refused",
    ),
    Equivalent(
        "zaya_jax/model/mla.py",
        'latent = self._latent("kv", config.kv_latent_size or 0, x)',
        "0 -> 1",
        "never read: a config of mla without that size is refused",
    ),
)


def reason_of(mutant: Mutant) -> str | None:
    """Why an edit is equivalent; None for all that are not listed."""
    for entry in EQUIVALENT:
        if (entry.file, entry.text, entry.what) == (mutant.file, mutant.text, mutant.what):
            return entry.reason
    return None


def mutants_of(file: str, root: Path = ROOT) -> Iterator[Mutant]:
    """Every edit of a file below `root`, its annotations, docstrings and error texts left alone.

    Raises:
      ValueError: when an edit listed as equivalent is none of the file's.
    """
    whole = (root / file).read_text(encoding="utf-8")
    lines, tree = whole.splitlines(), ast.parse(whole)
    stale = {entry for entry in EQUIVALENT if entry.file == file}
    for index, node in enumerate(_nodes(tree)):
        twin = copy.deepcopy(node)
        if _edit(twin):
            line = getattr(node, "lineno", 0)
            text, what = lines[line - 1].strip(), f"{_shown(node)} -> {_shown(twin)}"
            stale = {entry for entry in stale if (entry.text, entry.what) != (text, what)}
            yield Mutant(file, index, line, text, what)
    if stale:
        raise ValueError(f"listed as equivalent, but no edit of {file}: {stale}; mend the list")


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
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in _COMPARISONS:
            node.ops[0] = _COMPARISONS[type(op)]()
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _OPERATORS:
            node.op = _OPERATORS[type(op)]()
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
        case ast.UnaryOp(op=ast.Not() | ast.Invert() as op, operand=operand):
            node.operand = ast.UnaryOp(op, operand)  # twice is not at all
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            node.op = ast.UAdd()
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call() as test):
            node.test = ast.UnaryOp(ast.Not(), test)
        case ast.IfExp(test=ast.Name() | ast.Attribute() | ast.Call() as test):
            node.test = ast.UnaryOp(ast.Not(), test)
        case ast.Call(func=ast.Attribute(attr="where"), args=[_, yes, no]):
            node.args[1:] = [no, yes]
        case ast.Attribute(attr=name) if name in _CALLS:
            node.attr = _CALLS[name]
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            node.func = ast.Name(_CALLS[name])
        case _:
            return False
    return True


def _shown(node: ast.AST) -> str:
    """The node's source; of a statement, its condition."""
    return f"if {ast.unparse(node.test)}" if isinstance(node, ast.If) else ast.unparse(node)
