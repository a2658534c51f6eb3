"""How large the engine is, and the shapes its programs are compiled for."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from zaya_jax.config import ConfigError, LayerType, ModelConfig
from zaya_jax.inference.cache import CacheShape
from zaya_jax.inference.quantized import BITS

_SHORT_CHUNK = 16


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """Sizes of the engine.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    slots: int = 16  # sequences that run at the same time
    page_size: int = 16  # tokens in a page of the cache
    cache_tokens: int = 32_768  # tokens that all sequences together may keep
    prefill_chunk: int = 256  # most prompt tokens of a row in one dispatch
    prefill_rows: int = 4  # most rows of a part that take in prompts in one dispatch
    decode_steps: int = 8  # most tokens of a row drawn in one dispatch
    least_rows: int = 1  # rows that every dispatch has; four times as many as more take part
    least_table: int = 4  # pages that every dispatch looks at; doubled as sequences need more
    prefix_cache: bool = True  # remember pages of prompts and completions for later requests
    expert_bits: int | None = None  # 8 or 4: the experts' weights are rounded to so many
    mesh_data: int = 1  # parts of slots, cache and sequences, on devices of their own
    mesh_expert: int = 1  # parts of the experts, each on other devices

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_size = field.name not in ("prefix_cache", "expert_bits")
            if is_size and (isinstance(value, bool) or value < 1):
                raise ConfigError(f"{field.name}={value!r}: must be a positive integer")
        if self.expert_bits not in (None, *BITS):
            raise ConfigError(f"expert_bits={self.expert_bits!r}: must be None, 8 or 4")
        if self.cache_tokens < 2 * self.page_size * self.mesh_data:
            raise ConfigError(
                f"cache_tokens={self.cache_tokens}: must hold two pages of {self.page_size} tokens"
                + (f" in each of mesh_data={self.mesh_data} parts" if self.mesh_data > 1 else "")
            )
        if self.slots % self.mesh_data:
            raise ConfigError(
                f"slots={self.slots}: must be a multiple of mesh_data={self.mesh_data}"
            )
        if self.expert_bits is not None and self.mesh_expert > 1:
            raise ConfigError(
                f"expert_bits={self.expert_bits} needs mesh_expert=1, not {self.mesh_expert}: "
                "rounded experts are not split"
            )

    @property
    def pages(self) -> int:
        """Pages of the full layers."""
        return self.part_pages * self.mesh_data

    @property
    def part_pages(self) -> int:
        """Of these, pages of one part: no sequence has more."""
        return self.cache_tokens // (self.page_size * self.mesh_data)

    @property
    def part_slots(self) -> int:
        """Slots of one part."""
        return self.slots // self.mesh_data

    def cache_shape(self, config: ModelConfig) -> CacheShape:
        """What to allocate."""
        sliding = 0
        if LayerType.SLIDING in config.layer_types:
            sliding = self.slots * self.sliding_table(config, self.most_new_tokens)
            sliding = max(sliding, self.pages) if self.prefix_cache else sliding
        return CacheShape(self.slots, self.page_size, self.pages, sliding, self.prefix_cache)

    @property
    def most_new_tokens(self) -> int:
        """Most tokens that a dispatch adds to a sequence."""
        return max(self.prefill_chunk, self.decode_steps)

    def sliding_table(self, config: ModelConfig, new_tokens: int) -> int:
        """Pages that hold a window and some new tokens, wherever they start."""
        if config.sliding_window is None:
            return 1
        return -(-(config.sliding_window + new_tokens) // self.page_size) + 1

    def row_bucket(self, rows: int, most: int) -> int:
        """`least_rows`, four times as many, …, at most `most`."""
        bucket = self.least_rows
        while bucket < rows:
            bucket *= 4
        return min(bucket, most)

    def token_bucket(self, tokens: int) -> int:
        """A short chunk, four times as many tokens, …, at most a full chunk."""
        bucket = _SHORT_CHUNK
        while bucket < tokens:
            bucket *= 4
        return min(bucket, self.prefill_chunk)

    def table_bucket(self, pages: int) -> int:
        """`least_table` pages, twice, four times as many, …, at most all."""
        bucket = self.least_table
        while bucket < pages:
            bucket *= 2
        return min(bucket, self.part_pages)


class WarmUpShapes(NamedTuple):
    """(rows, pages) of decoding, (rows, pages, tokens) of taking in prompts; rows of one part."""

    decode: list[tuple[int, int]]
    prefill: list[tuple[int, int, int]]


def warm_up_shapes(settings: EngineSettings, tokens: int) -> WarmUpShapes:
    """Every shape that sequences of up to so many tokens can meet."""
    most_pages = -(-tokens // settings.page_size)
    tables = sorted({settings.table_bucket(pages) for pages in range(1, most_pages + 1)})

    def row_buckets(most: int) -> list[int]:
        return sorted({settings.row_bucket(rows, most) for rows in range(1, most + 1)})

    chunks = sorted({settings.token_bucket(count + 1) for count in range(settings.prefill_chunk)})
    return WarmUpShapes(
        decode=[(rows, table) for table in tables for rows in row_buckets(settings.part_slots)],
        prefill=[
            (rows, table, chunk)
            for table in tables
            for rows in row_buckets(settings.prefill_rows)
            for chunk in chunks
        ],
    )
