"""Copies all leaves from a reader to a writer, a few blocks in memory at a time."""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from zaya_jax.checkpoint.hub_writer import HubWriter
from zaya_jax.checkpoint.orbax_writer import OrbaxWriter
from zaya_jax.checkpoint.reader import (
    BLOCK_BYTES,
    Index,
    Reader,
    blocks,
    check_finite,
    common_block,
    grown_block,
)
from zaya_jax.checkpoint.tensor_rule import LeafPath

_THREADS = 4  # while one waits for the disk, another one checks, casts or checksums


Writer = HubWriter | OrbaxWriter  # parts may come from several threads


def copy_leaves(
    reader: Reader,
    writer: Writer,
    dtypes: Mapping[LeafPath, np.dtype],
    replaced: Mapping[LeafPath, np.ndarray],
    advance: Callable[[int], None],
) -> None:
    """Reads, checks, casts and writes all blocks, a few at a time."""

    def copy(path: LeafPath, index: Index) -> int:
        block = replaced[path][index] if path in replaced else reader.read(path, index)
        check_finite(reader, path, index, block)
        cast = block.astype(dtypes[path], copy=False)
        if cast is not block:
            narrow = f"as {cast.dtype.name}, which is too narrow, "
            check_finite(reader, path, index, cast, because=narrow)
        writer.write(path, index, cast)
        size = cast.nbytes
        del block, cast
        reader.release()
        return size

    _run_bounded(copy, _all_blocks(reader, writer), advance)


def _all_blocks(reader: Reader, writer: Writer) -> Iterator[tuple[int, LeafPath, Index]]:
    """Size, leaf and place of every block; blocks are whole chunks on both sides."""
    for path, leaf in reader.leaves.items():
        itemsize = leaf.dtype.itemsize
        unit = common_block(leaf.shape, leaf.chunk, writer.chunks[path])
        block = grown_block(leaf.shape, unit, itemsize, BLOCK_BYTES)
        for index in blocks(leaf.shape, block):
            size = itemsize * math.prod(part.stop - part.start for part in index)
            yield size, path, index


def _run_bounded(
    copy: Callable[[LeafPath, Index], int],
    work: Iterator[tuple[int, LeafPath, Index]],
    advance: Callable[[int], None],
) -> None:
    """Runs `copy` over all blocks in threads, with few bytes in memory at any time."""
    running: dict[concurrent.futures.Future[int], int] = {}
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        try:
            for size, path, index in work:
                while running and sum(running.values()) + size > _THREADS * BLOCK_BYTES:
                    _collect(running, advance)
                running[pool.submit(copy, path, index)] = size
            while running:
                _collect(running, advance)
        except BaseException:
            for future in running:
                future.cancel()
            raise


def _collect(
    running: dict[concurrent.futures.Future[int], int], advance: Callable[[int], None]
) -> None:
    """Takes out what has finished; raises what it raised."""
    done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
    for future in done:
        del running[future]
        advance(future.result())
