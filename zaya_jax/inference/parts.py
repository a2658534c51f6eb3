"""The parts of the engine over the mesh axis `data`: each has slots and pages of its own.

A sequence lives in one part from start to end. Ids of slots and pages count within the part.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence as Many

from zaya_jax.config import ModelConfig
from zaya_jax.inference.memory import Memory
from zaya_jax.inference.sequence import Sequence
from zaya_jax.inference.settings import EngineSettings


@dataclasses.dataclass
class Part:
    """What sequences of one part share.

    Attributes:
      number: of the part.
      memory: its pages and prefixes.
      free_slots: ids of slots, the next one last.
    """

    number: int
    memory: Memory
    free_slots: list[int]


def make_parts(config: ModelConfig, settings: EngineSettings) -> list[Part]:
    """All parts, empty."""
    shape, parts = settings.cache_shape(config), settings.mesh_data

    def part(number: int) -> Part:
        memory = Memory(
            page_size=shape.page_size,
            pages=shape.pages // parts,
            sliding_pages=shape.sliding_pages // parts,
            window=config.sliding_window,
            prefix_cache=settings.prefix_cache,
        )
        return Part(number, memory, list(range(settings.part_slots))[::-1])

    return [part(number) for number in range(parts)]


def parts_for(parts: Many[Part], sequence: Sequence) -> list[Part]:
    """Parts with a free slot: those that remember most of the sequence, then the emptiest."""
    free = [part for part in parts if part.free_slots]
    if len(free) < 2:
        return free
    return sorted(
        free, key=lambda part: (-part.memory.known_pages(sequence), -len(part.free_slots))
    )


def placed(sequences: Many[Sequence], parts: int, rows: int) -> list[Sequence | None]:
    """The rows of a dispatch: so many of each part in turn; None in a row without a sequence."""
    result: list[Sequence | None] = [None] * (parts * rows)
    taken: collections.Counter[int] = collections.Counter()
    for sequence in sequences:
        result[sequence.part * rows + taken[sequence.part]] = sequence
        taken[sequence.part] += 1
    return result


def most_of_a_part(sequences: Many[Sequence]) -> int:
    """How many of the sequences share a part at most."""
    return max(collections.Counter(sequence.part for sequence in sequences).values())


def usage(parts: Many[Part]) -> dict[str, int]:
    """Counts of what is in use in all parts together."""
    memories = [part.memory for part in parts]
    return {
        "free_slots": sum(len(part.free_slots) for part in parts),
        "pages": sum(memory.pool.pages for memory in memories),
        "pages_in_use": sum(memory.pages_in_use for memory in memories),
        "sliding_pages_in_use": sum(
            memory.sliding_pool.pages - memory.sliding_pool.free for memory in memories
        ),
        "remembered_pages": sum(
            len(memory.prefixes) for memory in memories if memory.prefixes is not None
        ),
    }
