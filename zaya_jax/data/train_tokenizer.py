"""Train the byte-level BPE that is shipped as `tokenizers/zaya_demo_8k.json`.

    python -m zaya_jax.data.train_tokenizer --output zaya_demo_8k.json
    python -m zaya_jax.data.train_tokenizer --output FILE.json --vocab-size 640 --config FILE.py

It learns from the training part of sources, by default the standard library of the running Python;
of conversations, from what is said and thought. The same text gives the same file; another Python
version has another library.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.conversation import Conversation
from zaya_jax.data.mixture import mixture_of
from zaya_jax.data.preview import data_config
from zaya_jax.data.samples import read_samples
from zaya_jax.data.sources import split
from zaya_jax.data.special_tokens import SPECIAL_TOKENS

# A word, up to three digits, or a run of signs, each with one space before it; then white space,
# whose last character is left to the word behind it. No merge crosses these borders.
_SPLIT = r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_bpe(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """A byte-level BPE of `vocab_size` tokens: the control tokens, 256 bytes, then merges."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def training_texts(source: str) -> Iterator[str]:
    """Texts of the part of a source that training sees.

    Raises:
      DataError: when there is no such source, or it holds token ids.
    """
    config = DataConfig(source=source, max_bytes=None)
    train, _ = split(read_samples(source, config).samples, config.validation_fraction)
    for sample in train:
        if isinstance(sample.content, Conversation):
            for message in sample.content.messages:
                yield f"{message.reasoning or ''}\n{message.content}"
        elif isinstance(sample.content, str):
            yield sample.content
        else:
            raise DataError(f"source {source!r} holds token ids, not text to learn tokens from")


def main() -> None:
    """Read the source, train, write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m zaya_jax.data.train_tokenizer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    parser.add_argument("--source", default="python_stdlib", help="as DataConfig.source")
    parser.add_argument(
        "--config", metavar="FILE.py[:NAME]", help="instead: every source of a run's config"
    )
    parser.add_argument("--vocab-size", type=int, default=8_192, help="tokens, all included")
    arguments = parser.parse_args()
    sources: tuple[str, ...] = (arguments.source,)
    if arguments.config:
        sources = mixture_of(data_config(arguments.config)).sources
    texts = [text for source in sources for text in training_texts(source)]
    tokenizer = train_bpe(texts, arguments.vocab_size)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(arguments.output), pretty=False)
    print(f"{tokenizer.get_vocab_size()} tokens from {len(texts)} texts: {arguments.output}")


if __name__ == "__main__":
    main()
