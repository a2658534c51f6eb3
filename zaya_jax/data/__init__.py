"""From text to packed batches, with a position that can be saved."""

from zaya_jax.data.checks import check_batch, check_data_fits_model
from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.packing import fill_rate
from zaya_jax.data.pipeline import (
    Batch,
    BatchIterator,
    TokenizedText,
    load_text,
    training_batches,
    unigram_entropy,
    validation_batches,
)
from zaya_jax.data.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "Batch",
    "BatchIterator",
    "DataConfig",
    "DataError",
    "TokenizedText",
    "Tokenizer",
    "check_batch",
    "check_data_fits_model",
    "fill_rate",
    "load_text",
    "load_tokenizer",
    "training_batches",
    "unigram_entropy",
    "validation_batches",
]
