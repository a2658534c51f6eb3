"""What text a run reads and how it becomes batches."""

from __future__ import annotations

import dataclasses
import enum

from zaya_jax.config import ConfigError


class DataError(ValueError):
    """Data the user supplied cannot be used. The message names the thing, its value and a mend."""


class Packing(enum.StrEnum):
    """How examples share windows."""

    ONLINE = "online"  # best fit in the order they come; plain text only, cut to windows
    PLANNED = "planned"  # best-fit decreasing over the whole epoch; also chats and mixtures


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Source, tokenizer, window and batch of one data stream. The defaults are the demo's.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    # Text
    source: str = "python_stdlib"  # "python_stdlib", "synthetic", or path of a text file or folder
    max_bytes: int | None = 6_000_000  # reading stops with the file that passes this; None: all
    validation_fraction: float = 0.05  # share of the files, by hash, held out for validation
    mixture: tuple[str, ...] = ()  # SOURCE=WEIGHT, or SOURCE=WEIGHT/STEP:WEIGHT; replaces `source`
    max_bad_rows: int | None = 100  # unusable rows of a source before reading stops; None: any
    thinking: bool = True  # chats: turns without reasoning carry an empty think block

    # Tokenizer
    tokenizer: str = "zaya_demo_8k"  # "zaya_demo_8k", "bytes", or path of a tokenizer.json
    bos_token: str | None = None  # token that opens a document; None: found by its usual names
    eos_token: str | None = None  # token that closes a document; None: found by its usual names
    pad_token: str | None = None  # token that fills windows; None: found by its usual names

    # Windows and batches
    sequence_length: int = 256  # tokens of one window
    batch_size: int = 16  # windows of one batch
    packing: Packing = Packing.ONLINE  # how examples share windows
    packing_bins: int = 256  # windows filled at the same time; more fill better; online only
    shuffle_seed: int = 0  # of the order of pieces, new in every epoch, and of windows
    prefetch_batches: int = 4  # batches prepared ahead by one thread; 0: none, no thread
    workers: int = 0  # threads that put batches together; planned only; 0: who asks for them does

    # Validation
    validation_batches: int = 8  # most batches of each source in one validation

    def __post_init__(self) -> None:
        _require_text(self, "source")
        _require_text(self, "tokenizer")
        for name in ("bos_token", "eos_token", "pad_token"):
            if getattr(self, name) is not None:
                _require_text(self, name)
        if self.max_bytes is not None:
            _require_integer(self, "max_bytes", 1)
        if self.max_bad_rows is not None:
            _require_integer(self, "max_bad_rows", 0)
        try:
            object.__setattr__(self, "packing", Packing(self.packing))
        except ValueError:
            raise ConfigError(
                f"packing={self.packing!r} must be one of: {', '.join(Packing)}"
            ) from None
        object.__setattr__(self, "mixture", tuple(self.mixture))
        if self.mixture and self.packing is Packing.ONLINE:
            raise ConfigError(f"mixture={self.mixture!r} needs packing=planned")
        for name in ("sequence_length", "batch_size", "packing_bins", "validation_batches"):
            _require_integer(self, name, 1)
        _require_integer(self, "prefetch_batches", 0)
        _require_integer(self, "workers", 0)
        if self.workers and self.packing is Packing.ONLINE:
            raise ConfigError(f"workers={self.workers} needs packing=planned")
        _require_integer(self, "shuffle_seed", 0)
        if self.shuffle_seed >= 2**32:
            raise ConfigError(f"shuffle_seed={self.shuffle_seed!r}: must be below 2**32")
        fraction = self.validation_fraction
        is_number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
        if not (is_number and 0.0 < fraction < 1.0):
            raise ConfigError(f"validation_fraction={fraction!r}: must lie between 0 and 1")


def _require_text(config: DataConfig, name: str) -> None:
    value = getattr(config, name)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name}={value!r}: must be a non-empty string")


def _require_integer(config: DataConfig, name: str, least: int) -> None:
    value = getattr(config, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r}: must be an integer of at least {least}")
