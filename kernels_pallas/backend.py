"""Which form of an operation runs where, its tile sizes, and the one door to Pallas.

Every operation has a complete XLA form and a Pallas form for GPUs (the Triton backend of Pallas,
the only one that also lowers for ROCm). ``implementation`` chooses:

* ``"xla"``: the XLA form, anywhere.
* ``"pallas"``: the kernels, or one error saying why they cannot run here.
* ``"auto"``: the kernels where the default backend is a GPU, the XLA form elsewhere. On a GPU an
  unsupported shape or a missing table is the same error as with ``"pallas"``: the path never
  changes silently.

Tile sizes come from ``tuned/NAME.json``, one file for each kind of device. ``python -m
kernels_pallas.tune`` writes them; nothing is tuned while a program is traced.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton

Implementation = Literal["auto", "pallas", "xla"]
IMPLEMENTATIONS = ("auto", "pallas", "xla")
TABLES = Path(__file__).parent / "tuned"


class KernelError(ValueError):
    """A kernel cannot run as asked. The message says what, why and what to use instead."""


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Tile sizes of one kernel, and how Triton compiles it."""

    sizes: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int

    def __getitem__(self, name: str) -> int:
        return dict(self.sizes)[name]

    @classmethod
    def parse(cls, entry: Mapping[str, int]) -> Tiles:
        """From a table's entry: ``num_warps``, ``num_stages``, the rest are tile sizes."""
        sizes = {k: v for k, v in entry.items() if k not in ("num_warps", "num_stages")}
        return cls(tuple(sorted(sizes.items())), entry["num_warps"], entry["num_stages"])


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of device that the Pallas kernels run on.

    Attributes:
      name: its table, ``tuned/<name>.json``.
      interpret: run the kernels step by step through XLA, on any machine; for tests.
      overrides: tiles that replace the table's, by kernel name.
    """

    name: str
    interpret: bool = False
    overrides: tuple[tuple[str, Tiles], ...] = ()


INTERPRETER = Target("interpreter", interpret=True)

_target: contextvars.ContextVar[Target | None] = contextvars.ContextVar("target", default=None)


@contextlib.contextmanager
def compile_for(target: Target) -> Iterator[None]:
    """Inside, operations are traced for ``target`` whatever the machine; ``"auto"`` is Pallas.

    The target is read while a function is traced: give every target a function of its own to
    ``jax.jit``, which otherwise hands out what it traced before.
    """
    token = _target.set(target)
    try:
        yield
    finally:
        _target.reset(token)


def choose(
    implementation: object,
    operation: str,
    refusals: Sequence[str | None] = (),
    further: tuple[str, ...] = (),
) -> Target | None:
    """The target whose kernels run the operation, or None for its XLA form.

    Args:
      implementation: what the caller asked for, whatever it is.
      operation: its name, for the error.
      refusals: reasons why the kernels cannot take these arrays; None entries are no reasons.
      further: names of XLA forms that this operation has besides ``"xla"``.

    Raises:
      KernelError: when Pallas is asked for, or due on this GPU, and cannot run.
    """
    known = (*IMPLEMENTATIONS, *further)
    if implementation not in known:
        names = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        raise KernelError(f"{operation}: implementation = {implementation!r}: must be {names}")
    if implementation == "xla" or implementation in further:
        return None
    target = _target.get()
    if target is None and implementation == "auto" and jax.default_backend() not in _GPUS:
        return None
    reasons = [reason for reason in refusals if reason]
    if target is None and not reasons:
        target = _device_target(operation)
    if reasons:
        raise KernelError(
            f"{operation}: the Pallas kernel does not take this: {'; '.join(reasons)}; "
            "use implementation='xla'"
        )
    return target


_GPUS = ("gpu", "cuda", "rocm")


def _device_target(operation: str) -> Target:
    """The table of the machine's GPU."""
    backend = jax.default_backend()
    if backend not in _GPUS:
        raise KernelError(
            f"{operation}: implementation='pallas' needs a GPU, the default backend is "
            f"{backend!r}; use implementation='xla' or 'auto'"
        )
    kind = jax.devices()[0].device_kind
    for name in table_names():
        if kind in device_kinds(name):
            return Target(name)
    raise KernelError(
        f"{operation}: no tuned table names the device kind {kind!r} (tables: "
        f"{', '.join(table_names())}); use implementation='xla' or, if its architecture is one of "
        "theirs, begin a table with 'python -m kernels_pallas.tune --device-kind'; see its --help"
    )


def table_names() -> tuple[str, ...]:
    """The tuned tables at hand."""
    return tuple(sorted(path.stem for path in TABLES.glob("*.json")))


@functools.cache
def _table(name: str) -> dict[str, Any]:
    path = TABLES / f"{name}.json"
    if not path.exists():
        raise KernelError(
            f"no tuned table {name!r} (tables: {', '.join(table_names())}); "
            "use implementation='xla'"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def device_kinds(table: str) -> tuple[str, ...]:
    """The devices that a table is for, as JAX names their kinds."""
    return tuple(_table(table)["device_kinds"])


def kernel_names(table: str) -> tuple[str, ...]:
    """The kernels that a table has tiles for."""
    return tuple(sorted({key.split(":")[0] for key in _table(table)["tiles"]}))


def forget_tables() -> None:
    """Read the tables anew when they are next asked for; for who has written one."""
    _table.cache_clear()


def tiles(target: Target, kernel: str, size: int | None = None) -> Tiles:
    """Tile sizes of a kernel on a target.

    Args:
      target: where it runs.
      kernel: its name in the table.
      size: for kernels with one entry for each size (``"name:64"``, ``"name:128"``): the smallest
        entry that is not below ``size`` is taken.

    Raises:
      KernelError: when the table has no entry.
    """
    overrides = dict(target.overrides)
    if kernel in overrides:
        return overrides[kernel]
    entries = _table(target.name)["tiles"]
    if kernel in entries:
        return Tiles.parse(entries[kernel])
    sized = {int(k.split(":")[1]): v for k, v in entries.items() if k.split(":")[0] == kernel}
    fitting = [s for s in sorted(sized) if size is not None and s >= size]
    if not fitting:
        greatest = f" at size {size}, {max(sized)} is the most" if sized else ""
        raise KernelError(
            f"{kernel}: the table {target.name!r} has no tiles for it{greatest}; "
            "use implementation='xla'"
        )
    return Tiles.parse(sized[fitting[0]])


def call(
    kernel: Callable[..., None],
    *operands: jax.Array,
    target: Target,
    tiles: Tiles,
    grid: tuple[int, ...],
    outputs: Any,
    name: str,
) -> Any:
    """Run a Pallas kernel over whole arrays in global memory.

    Every ref is a whole array; the kernel picks its part by ``pl.program_id``, with ``load`` and
    ``store`` below. Scalar prefetch and dynamic grids do not exist for Triton: tables are ordinary
    operands, and programs without work return early.
    """

    def named(*refs: Any) -> None:
        kernel(*refs)

    named.__name__ = named.__qualname__ = name  # the name that profiles and Triton show
    return pl.pallas_call(
        named,
        grid=grid,
        out_shape=outputs,
        interpret=target.interpret,
        compiler_params=None
        if target.interpret
        else pallas_triton.CompilerParams(num_warps=tiles.num_warps, num_stages=tiles.num_stages),
        name=name,
    )(*operands)


def load(ref: Any, *index: Any, mask: jax.Array | None = None) -> jax.Array:
    """Elements of ``ref`` at broadcast integer indices; 0 where the mask is False, nothing read."""
    if mask is None:
        return pallas_triton.load(ref.at[_broadcast(index)])
    index = _broadcast(index, mask.shape)
    mask = _expand(mask, index[0].shape)
    return pallas_triton.load(ref.at[index], mask=mask, other=jnp.zeros((), ref.dtype))


def store(ref: Any, *index: Any, value: jax.Array, mask: jax.Array | None = None) -> None:
    """Write ``value`` in the ref's dtype at broadcast integer indices, where the mask is True."""
    index = _broadcast(index)
    value = jnp.broadcast_to(value, index[0].shape).astype(ref.dtype)
    if mask is not None:
        mask = jnp.broadcast_to(mask, index[0].shape)
        # Elements that are not written point past the end, so that no two share a place.
        last = jnp.where(mask, index[-1], ref.shape[-1])
        index = (*index[:-1], last)
    pallas_triton.store(ref.at[index], value, mask=mask)


def _broadcast(index: tuple[Any, ...], shape: tuple[int, ...] = ()) -> tuple[jax.Array, ...]:
    arrays = [jnp.asarray(i, jnp.int32) for i in index]
    shape = jnp.broadcast_shapes(shape, *(a.shape for a in arrays))
    return tuple(_expand(a, shape) for a in arrays)


def _expand(a: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return a if a.shape == shape else jnp.broadcast_to(a, shape)


def dot(a: jax.Array, b: jax.Array, contract_a: int = 1, contract_b: int = 0) -> jax.Array:
    """Matrix product accumulated in float32; float32 operands are not shortened."""
    exact = a.dtype == jnp.float32
    return jax.lax.dot_general(
        a,
        b,
        (((contract_a,), (contract_b,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if exact else None,
        preferred_element_type=jnp.float32,
    )


def split_index(index: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Quotient and remainder of an index that is not negative, inside a kernel."""
    divisor = jnp.int32(size)
    return jax.lax.div(index, divisor), jax.lax.rem(index, divisor)


def power_of_two(size: int, least: int = 1) -> int:
    """The next power of two, at least ``least``: what Triton wants of every tile."""
    return max(least, 1 << max(0, size - 1).bit_length())


def cdiv(a: int, b: int) -> int:
    """Division rounded up."""
    return -(-a // b)
