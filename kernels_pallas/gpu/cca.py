"""The CCA mixing step in one pass: packed projections and value streams in, q, k and v out.

Grid [token blocks, kv heads, batch]; a program owns ``tokens`` tokens of one KV head with its group
of query heads, and that head's values. For each head it loads the projections of its tokens and of
the few before them (from the cache after the first time), sums the depthwise taps in float32,
rounds once to the activations' dtype and multiplies with the head's taps on the matrix cores; the
steps are those of ``cca_block.Block``.

Bytes: u, both value streams, cos and sin read, q, k and v written, once each; FLOPs:
2 * channels * head_dim * grouped_width a token. At the released sizes the two take about the same
time.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from kernels_pallas.backend import Target, call, cdiv, load, store, tiles
from kernels_pallas.gpu.cca_block import Block, Inputs, Sizes, operands, part_columns, sizes


def forward(inputs: Inputs, *, target: Target) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q [batch, seq, query_heads, head_dim], k and v [batch, seq, kv_heads, head_dim]."""
    plan = tiles(target, "cca_forward", inputs.grouped.shape[1])
    size = sizes(inputs, plan)
    batch, dtype = inputs.query_key.shape[0], inputs.query_key.dtype
    arrays = operands(inputs)
    kv = jax.ShapeDtypeStruct((batch, size.seq, size.kv_heads, size.head_dim), dtype)
    query_heads = size.kv_heads * size.group
    return call(
        functools.partial(_forward_kernel, names=tuple(arrays), size=size),
        *arrays.values(),
        target=target,
        tiles=plan,
        grid=(cdiv(size.seq, size.tokens), size.kv_heads, batch),
        outputs=(
            jax.ShapeDtypeStruct((batch, size.seq, query_heads, size.head_dim), dtype),
            kv,
            kv,
        ),
        name="cca_forward",
    )


def _forward_kernel(*refs: Any, names: tuple[str, ...], size: Sizes) -> None:
    ref = dict(zip(names, refs, strict=False))
    q_ref, k_ref, v_ref = refs[len(names) :]
    block = Block(ref, size)
    kv_head, batch, row = block.kv_head, block.batch, block.row[:, None]
    valid = row < size.seq

    def write(out_ref: Any, head: Any, turned: list[jax.Array]) -> None:
        for (first, width), value in zip(size.parts, turned, strict=True):
            column = part_columns(width)
            index = (batch, row, head, first + column)
            store(out_ref, *index, value=value, mask=valid & (column < width))

    def one_query(g: jax.Array, nothing: None) -> None:
        head = kv_head * size.group + g
        y = block.before_norm(head, block.query_mean(head))
        write(q_ref, head, block.rotate([part * block.length(y) for part in y]))
        return nothing

    jax.lax.fori_loop(0, size.group, one_query, None)
    y = block.before_norm(block.key_head, block.key_mean())
    scale = block.length(y) * load(ref["temperature"], kv_head)
    write(k_ref, kv_head, block.rotate([part * scale for part in y]))
    block.write_values(v_ref)
