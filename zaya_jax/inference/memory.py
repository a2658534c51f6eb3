"""Giving pages to sequences, taking them back, and sharing those of common prefixes."""

from __future__ import annotations

import numpy as np

from zaya_jax.inference.pages import PagePool, PrefixCache
from zaya_jax.inference.sequence import Sequence


class Memory:
    """The pages of full and of sliding layers, and the prefixes that are remembered."""

    def __init__(
        self,
        *,
        page_size: int,
        pages: int,
        sliding_pages: int,
        window: int | None,
        prefix_cache: bool,
    ) -> None:
        self.page_size = page_size
        self.pool = PagePool(pages)
        self.sliding_pool = PagePool(sliding_pages)
        self.window = window
        self.prefixes = (
            PrefixCache(self.pool, self.sliding_pool, page_size) if prefix_cache else None
        )

    @property
    def pages_in_use(self) -> int:
        """Pages held by sequences or remembered prefixes."""
        return self.pool.pages - self.pool.free

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Makes room for the sequence's first `length` tokens; False where memory ran out.

        What it has been given stays with it in either case.
        """
        self._give_back_unseen(sequence)
        while len(sequence.pages) * self.page_size < length:
            page = self._take(self.pool)
            if page is None:
                return False
            sequence.pages.append(page)
        if self.window is None:
            return True
        first, last = sequence.cached // self.page_size, -(-length // self.page_size)
        for number in range(first, last):
            if number not in sequence.sliding:
                page = self._take(self.sliding_pool)
                if page is None:
                    return False
                sequence.sliding[number] = page
        return True

    def give_back(self, sequence: Sequence) -> None:
        """Takes all pages from a sequence."""
        for page in sequence.pages:
            self.pool.release(page)
        for page in sequence.sliding.values():
            self.sliding_pool.release(page)
        sequence.pages, sequence.sliding = [], {}
        sequence.cached, sequence.block, sequence.remembered = 0, -1, 0

    def known_pages(self, sequence: Sequence) -> int:
        """Pages at the start of a new sequence that are remembered."""
        if self.prefixes is None:
            return 0
        tokens = sequence.tokens(0, sequence.length - 1)
        return len(self.prefixes.find(sequence.version, tokens))

    def reuse_prefix(self, sequence: Sequence) -> int | None:
        """Gives a new sequence the pages of the longest prefix that is remembered.

        Returns:
          The last of these pages, at whose end the sequence goes on; None without any.
        """
        if self.prefixes is None:
            return None
        blocks = self.prefixes.find(sequence.version, sequence.tokens(0, sequence.length - 1))
        if not blocks:
            return None
        for number, block in enumerate(blocks):
            self.pool.hold(block.page)
            sequence.pages.append(block.page)
            if block.sliding_page is not None:
                self.sliding_pool.hold(block.sliding_page)
                sequence.sliding[number] = block.sliding_page
            sequence.record_routes(block.routes)
            sequence.cached += self.page_size
        sequence.block, sequence.remembered = blocks[-1].number, len(blocks)
        self._give_back_unseen(sequence)
        return blocks[-1].page

    def remember(self, sequence: Sequence, version: int) -> None:
        """Adds the sequence's full pages to the prefix cache, if one version wrote them all."""
        if self.prefixes is None or sequence.version != version:
            return
        size = self.page_size
        while (sequence.remembered + 1) * size <= sequence.cached:
            number = sequence.remembered
            if self.window is not None and number not in sequence.sliding:
                return
            start, stop = number * size, (number + 1) * size
            sequence.block = self.prefixes.remember(
                version,
                sequence.block,
                sequence.tokens(start, stop),
                sequence.pages[number],
                sequence.sliding.get(number),
                np.stack(sequence.routes[start:stop]),
            )
            sequence.remembered += 1

    def _take(self, pool: PagePool) -> int | None:
        page = pool.take()
        while page is None and self.prefixes is not None and self.prefixes.forget_oldest():
            page = pool.take()
        return page

    def _give_back_unseen(self, sequence: Sequence) -> None:
        """Sliding layers' pages of which the next token sees nothing."""
        if self.window is None:
            return
        first_seen = sequence.cached - self.window + 1
        for number in [n for n in sequence.sliding if (n + 1) * self.page_size <= first_seen]:
            self.sliding_pool.release(sequence.sliding.pop(number))
