"""Look at what a run will read: windows as text, with segments and loss masks in colour.

    python -m zaya_jax.data.preview --config experiments/configs/small.py:sft --windows 2

Bold green is learnt, plain is only read; each segment begins on a line of its own. Without colours
(a pipe, or --plain) learnt text stands between ⟦ and ⟧.
"""

from __future__ import annotations

import argparse
import itertools
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from zaya_jax.config import ConfigError
from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.pipeline import Batch, load_text, training_batches
from zaya_jax.data.tokenizer import Tokenizer

_LEARNT, _NUMBER, _RESET = "\x1b[1;32m", "\x1b[36m", "\x1b[0m"


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m zaya_jax.data.preview",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="FILE.py[:NAME]", help="config file")
    parser.add_argument("--windows", type=int, default=2, help="how many to show")
    parser.add_argument("--plain", action="store_true", help="no colours")
    arguments = parser.parse_args(argv)
    config = data_config(arguments.config)
    text = load_text(config)
    print("".join(f"{note}\n" for note in text.notes), end="")
    colours = not arguments.plain and sys.stdout.isatty()
    batches = training_batches(config, text)
    shown = 0
    while shown < arguments.windows:
        batch = next(batches)
        for row in range(min(len(batch["tokens"]), arguments.windows - shown)):
            print("\n".join(window_lines(batch, row, text.tokenizer, colours=colours)))
            shown += 1
    batches.close()
    return 0


def data_config(file_and_name: str) -> DataConfig:
    """The data section of a config file.

    Raises:
      DataError: when the file is missing or defines no config.
    """
    path, _, name = file_and_name.partition(":")
    if not Path(path).is_file():
        raise DataError(f"config file {path!r} does not exist")
    get_config = runpy.run_path(path).get("get_config")
    if get_config is None:
        raise DataError(f"config file {path!r} defines no get_config(name=...)")
    config = get_config(name) if name else get_config()
    return DataConfig(**config.data.to_dict())


def window_lines(batch: Batch, row: int, tokenizer: Tokenizer, *, colours: bool) -> Iterator[str]:
    """One window as lines of text.

    Args:
      batch: as `training_batches` yields it.
      row: which window of it.
      tokenizer: the one the batch was made with.
      colours: mark with ANSI colours instead of brackets.
    """
    segments = batch["segment_ids"][row]
    learnt = batch["loss_weights"][row] > 0
    filled, learnt_count = int((segments > 0).sum()), int(learnt.sum())
    yield (
        f"window of {segments.size}: {segments.max()} segments, {filled} tokens, "
        f"{learnt_count} learnt, {segments.size - filled} padding"
    )
    for segment in range(1, segments.max() + 1):
        (where,) = (segments == segment).nonzero()
        head = f"[{segment}: {where.size} tokens]"
        yield f"{_NUMBER}{head}{_RESET}" if colours else head
        # The first token is read; every further one is the target of the one before it.
        ids = [int(batch["tokens"][row, where[0]]), *batch["targets"][row, where].tolist()]
        flags = [False, *learnt[where].tolist()]
        parts = []
        for is_learnt, run in itertools.groupby(zip(ids, flags, strict=True), lambda pair: pair[1]):
            text = tokenizer.decode((token for token, _ in run), keep_special=True)
            before, after = (_LEARNT, _RESET) if colours else ("⟦", "⟧")
            parts.append(f"{before}{text}{after}" if is_learnt else text)
        yield "".join(parts)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ConfigError, DataError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
