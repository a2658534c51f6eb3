"""Checks downloaded ZAYA1-8B weights, in any layout, against published and reported values.

    python -m zaya_jax.checkpoint.verify_release DIR

Counts, geometry and tokenizer are exact. The model runs in bfloat16, where another device may round
another way: the reference's own greedy text differs between GPUs after its fifth token, so the
tokens after that are printed and not judged.

Source of the values: the tests of transformers' ZAYA implementation; the top token after "The
capital of France is" was reported by users of other ports.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.layouts import LAYOUTS
from zaya_jax.checkpoint.open import open_intact
from zaya_jax.checkpoint.orbax_reader import TOKENIZER_FILE
from zaya_jax.checkpoint.reader import Reader

PARAMETERS = 8_840_489_464
TENSORS = {"zyphra": 2_483, "transformers": 1_283}
GEOMETRY = {
    "vocab_size": 262_272,
    "hidden_size": 2_048,
    "num_layers": 40,
    "num_query_heads": 8,
    "num_kv_heads": 2,
    "head_dim": 128,
    "num_experts": 16,
    "expert_intermediate_size": 2_048,
    "router_hidden_size": 256,
    "max_position_embeddings": 131_072,
    "rope_theta": 5e6,
    "rotary_fraction": 0.5,
}
GREETING = "Hello! How can I assist you today?"
GREETING_IDS = (2, 9259, 236888, 2088, 740, 564, 6361, 611, 3124, 236881, 106)
GREETING_BEST = (105, 9731, 107, 740, 564, 1601, 611, 236881, 236881, 107, 107)
GREETING_GREEDY = (
    *(107, 262146, 108, 9259, 236888, 1030, 5724, 1133),
    *(611, 236789, 500, 7467, 528, 4735, 1003, 5213),
)
JUDGED_GREEDY = 5  # tokens on which all devices agreed
CAPITAL = "The capital of France is"
CAPITAL_BEST = 9079

DOWNLOAD = (
    "download the weights first (17.7 GB): hf download Zyphra/ZAYA1-8B --local-dir DIR, then "
    "python -m zaya_jax.checkpoint.verify_release DIR"
)

# Token ids -> the best next token at every position.
BestTokens = Callable[[Sequence[int]], Sequence[int]]


class Check(NamedTuple):
    """One comparison."""

    name: str
    expected: str
    found: str
    passed: bool


def check_files(reader: Reader) -> Iterator[Check]:
    """Counts and geometry."""
    yield _equal("parameters", PARAMETERS, reader.parameter_count)
    for layout, expected in TENSORS.items():
        rules = LAYOUTS[layout].rules(reader.config)
        count = sum(len(rule.names(reader.config)) for rule in rules)
        yield _equal(f"tensors in the {layout} layout", expected, count)
    for name, value in GEOMETRY.items():
        yield _equal(name, value, getattr(reader.config, name))


def check_tokenizer(encode: Callable[[str], list[int]]) -> Iterator[Check]:
    """The ids of a known text, with bos and eos."""
    yield _equal(f"ids of {GREETING!r}", GREETING_IDS, tuple(encode(GREETING)))


def check_model(best_tokens: BestTokens, capital_ids: Sequence[int]) -> Iterator[Check]:
    """Best tokens on known texts."""
    best = tuple(best_tokens(GREETING_IDS))
    yield _equal("best token at each position", GREETING_BEST, best)
    yield _equal(f"best token after {CAPITAL!r}", CAPITAL_BEST, best_tokens(capital_ids)[-1])
    ids = list(GREETING_IDS)
    for _ in GREETING_GREEDY:
        ids.append(best_tokens(ids)[-1])
    greedy = tuple(ids[len(GREETING_IDS) :])
    judged = slice(0, JUDGED_GREEDY)
    yield _equal(f"first {JUDGED_GREEDY} greedy tokens", GREETING_GREEDY[judged], greedy[judged])
    rest = slice(JUDGED_GREEDY, None)
    yield Check(
        "greedy tokens after them (not judged)", str(GREETING_GREEDY[rest]), str(greedy[rest]), True
    )


def _equal(name: str, expected: object, found: object) -> Check:
    return Check(name, f"{expected}", f"{found}", expected == found)


def _runner(path: Path, most_tokens: int) -> BestTokens:
    """The model as a function; one program for every length up to `most_tokens`."""
    # JAX takes a second to import and the weights minutes to load: only after the files are right.
    import jax
    import jax.numpy as jnp

    from zaya_jax.checkpoint.load import load_checkpoint
    from zaya_jax.model.transformer import Transformer

    config, variables = load_checkpoint(path, dtype=jnp.bfloat16)
    model = Transformer(config)

    @jax.jit
    def best(variables: dict, row: jax.Array) -> jax.Array:
        output: Any = model.apply(variables, row)
        return output.logits[0].argmax(-1)

    def run(ids: Sequence[int]) -> list[int]:
        row = np.zeros((1, most_tokens), np.int32)  # no token sees the ones after it
        row[0, : len(ids)] = ids
        return np.asarray(best(variables, jnp.asarray(row)))[: len(ids)].tolist()

    return run


def verify_release(path: Path) -> Iterator[Check]:
    """All checks, in order; stops after the files when those are not ZAYA1-8B's.

    Raises:
      CheckpointError: when there are no weights, or no tokenizer with them.
    """
    if not path.is_dir() or not any(path.iterdir()):
        raise CheckpointError(f"{path} holds no weights; {DOWNLOAD}")
    reader = open_intact(path)
    files = list(check_files(reader))
    yield from files
    if not all(check.passed for check in files):
        return
    if TOKENIZER_FILE not in reader.companions:
        raise CheckpointError(f"{path} has no {TOKENIZER_FILE}; it comes with the release")
    tokenizer = tokenizers.Tokenizer.from_file(str(reader.companions[TOKENIZER_FILE]))
    yield from check_tokenizer(lambda text: tokenizer.encode(text).ids)
    inner = tokenizer.encode(CAPITAL, add_special_tokens=False).ids
    most_tokens = len(GREETING_IDS) + len(GREETING_GREEDY)
    yield from check_model(_runner(path, most_tokens), [GREETING_IDS[0], *inner])


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = Parser(
        prog="python -m zaya_jax.checkpoint.verify_release",
        description=__doc__,
        epilog=DOWNLOAD,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="DIR", type=Path, help="folder with the weights")
    options = parser.parse_args(argv)
    failed = 0
    for check in verify_release(options.path):
        failed += not check.passed
        print(f"{'ok    ' if check.passed else 'FAILED'} {check.name}: {check.found}", flush=True)
        if check.found != check.expected:
            print(f"       expected {check.expected}")
    print(f"{failed} checks failed" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
