"""Which pages of the cache are free, who holds the others, and which prefixes are remembered."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8


class PagePool:
    """Counts who holds each page; a page that nobody holds is free."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._free = list(range(pages))[::-1]
        self._holders = [0] * pages

    @property
    def free(self) -> int:
        """Pages that can be taken."""
        return len(self._free)

    def take(self) -> int | None:
        """A free page, now held once; None where there is none."""
        if not self._free:
            return None
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One holder more."""
        assert self._holders[page] > 0, f"page {page} is free"
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """One holder less; the last one frees the page."""
        assert self._holders[page] > 0, f"page {page} is free"
        self._holders[page] -= 1
        if self._holders[page] == 0:
            self._free.append(page)


@dataclasses.dataclass(frozen=True)
class Block:
    """A page of a remembered prefix: where it is, and the router classes of its tokens."""

    number: int
    page: int
    sliding_page: int | None
    routes: UInt8[np.ndarray, "page_tokens all_layers"]


_Key = tuple[int, int, tuple[int, ...]]


class PrefixCache:
    """Remembers full pages by weight version and all tokens up to their end.

    A block is found by its predecessor and its own tokens, so a chain of lookups compares whole
    prefixes exactly. It holds its pages itself; `forget_oldest` gives them back.
    """

    def __init__(self, pool: PagePool, sliding_pool: PagePool, page_size: int) -> None:
        self._pool = pool
        self._sliding_pool = sliding_pool
        self._page_size = page_size
        self._blocks: OrderedDict[_Key, Block] = OrderedDict()  # the oldest use first
        self._created = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, version: int, tokens: Sequence[int]) -> list[Block]:
        """The longest remembered chain of blocks at the start of `tokens`."""
        found: list[tuple[_Key, Block]] = []
        for start in range(0, len(tokens) - self._page_size + 1, self._page_size):
            parent = found[-1][1].number if found else -1
            key = (version, parent, tuple(tokens[start : start + self._page_size]))
            block = self._blocks.get(key)
            if block is None:
                break
            found.append((key, block))
        for key, _ in reversed(found):  # the first block last: it must outlive those it leads to
            self._blocks.move_to_end(key)
        return [block for _, block in found]

    def remember(
        self,
        version: int,
        parent: int,
        tokens: Sequence[int],
        page: int,
        sliding_page: int | None,
        routes: UInt8[np.ndarray, "page_tokens all_layers"],
    ) -> int:
        """Adds one block after block `parent` (-1: at the start); returns its number."""
        key = (version, parent, tuple(tokens))
        known = self._blocks.get(key)
        if known is not None:
            return known.number
        self._created += 1
        self._pool.hold(page)
        if sliding_page is not None:
            self._sliding_pool.hold(sliding_page)
        self._blocks[key] = Block(self._created, page, sliding_page, routes)
        return self._created

    def forget_oldest(self) -> bool:
        """Gives back the pages of the block that was used least recently; False without any."""
        if not self._blocks:
            return False
        _, block = self._blocks.popitem(last=False)
        self._pool.release(block.page)
        if block.sliding_page is not None:
            self._sliding_pool.release(block.sliding_page)
        return True

    def clear(self) -> None:
        """Forgets everything."""
        while self.forget_oldest():
            pass
