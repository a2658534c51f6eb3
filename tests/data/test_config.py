"""A data config refuses values that cannot work, naming field, value and rule."""

from __future__ import annotations

import pytest

from zaya_jax.config import ConfigError
from zaya_jax.data import DataConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source", ""),
        ("tokenizer", 3),
        ("eos_token", ""),
        ("max_bytes", 0),
        ("sequence_length", 0),
        ("sequence_length", 2.5),
        ("batch_size", True),
        ("packing_bins", -1),
        ("prefetch_batches", -1),
        ("validation_batches", 0),
        ("shuffle_seed", 2**32),
        ("validation_fraction", 1.0),
        ("validation_fraction", float("nan")),
    ],
)
def test_bad_field_is_named(field, value):
    with pytest.raises(ConfigError, match=f"{field}={value!r}"):
        DataConfig(**{field: value})
