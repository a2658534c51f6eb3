"""Diagnostics of a checkpoint: router load, experts, sampler against trainer, long contexts.

    python -m zaya_jax.evaluation.diagnostics --checkpoint DIR --output FOLDER

FOLDER gets `diagnostics.json` and `diagnostics.html`. `--parts` leaves some out, `--text` gives the
texts that router and sampler see; without it, the text of Python's own standard library.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.config import ModelConfig
from zaya_jax.data.sources import READERS, read_text
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.evaluation.diagnostics.agreement import sampler_agreement
from zaya_jax.evaluation.diagnostics.expert_overlap import expert_overlap
from zaya_jax.evaluation.diagnostics.needles import needle_grid
from zaya_jax.evaluation.diagnostics.page import diagnostics_page
from zaya_jax.evaluation.diagnostics.router_load import router_load, text_rows
from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.inference.command import Parser, add_model_options, find_tokenizer, run_command
from zaya_jax.inference.settings import EngineSettings

_TEXT_BYTES = 4_000_000  # read of the texts
_PROMPT_TOKENS = 16  # of a text, for the sampler to go on from


class _Inputs(NamedTuple):
    config: ModelConfig
    variables: dict[str, Any]
    tokenizer: Tokenizer
    options: argparse.Namespace


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    options = _options(argv)
    parts = options.parts.split(",")
    unknown = [part for part in parts if part not in _PARTS]
    if unknown:
        raise EvaluationError(f"--parts {unknown[0]!r} must be among {', '.join(_PARTS)}")
    tokenizer = find_tokenizer(options.checkpoint, options.tokenizer)
    config, variables = load_checkpoint(options.checkpoint)
    inputs = _Inputs(config, variables, tokenizer, options)
    found = {}
    for part in parts:
        print(f"{part} …", file=sys.stderr, flush=True)
        found[part] = _PARTS[part](inputs)
    options.output.mkdir(parents=True, exist_ok=True)
    plain = {part: _summary(part, result) for part, result in found.items()}
    files = {
        "diagnostics.json": json.dumps(plain, indent=2) + "\n",
        "diagnostics.html": diagnostics_page(str(options.checkpoint), found),
    }
    for name, text in files.items():
        temporary = options.output / f"{name}.partial"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(options.output / name)
        print(f"wrote {options.output / name}")
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m zaya_jax.evaluation.diagnostics", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--parts", default=",".join(_PARTS), help="(all of them)")
    parser.add_argument("--text", default="python_stdlib", help="text file, folder, or source")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row of text (512)")
    parser.add_argument("--rows", type=int, default=64, help="rows for the router's load (64)")
    parser.add_argument("--rank", type=int, help="of the experts' subspaces (128, or what fits)")
    parser.add_argument("--rollouts", type=int, default=64, help="for sampler and trainer (64)")
    parser.add_argument("--most-tokens", type=int, default=128, help="of a rollout (128)")
    parser.add_argument("--needle-lengths", help="a,b,c; default: 1/8 to all of the context")
    parser.add_argument("--needle-depths", default="0,0.25,0.5,0.75,1", help="(0,0.25,0.5,0.75,1)")
    parser.add_argument("--needle-trials", type=int, default=8, help="for each cell (8)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampler (0)")
    return parser.parse_args(argv)


def _texts(inputs: _Inputs) -> list[list[int]]:
    source = inputs.options.text
    if source in READERS:
        documents = READERS[source](_TEXT_BYTES).documents
    else:
        documents = read_text(source, _TEXT_BYTES)[1].documents
    tokenizer = inputs.tokenizer
    return [[tokenizer.bos_id, *tokenizer.encode(document.text)] for document in documents]


def _load(inputs: _Inputs) -> Any:
    options = inputs.options
    rows = text_rows(_texts(inputs), options.length, options.rows)
    return router_load(inputs.config, inputs.variables, rows)


def _overlap(inputs: _Inputs) -> Any:
    config, rank = inputs.config, inputs.options.rank
    most = min(config.hidden_size, config.expert_intermediate_size) // 4
    return expert_overlap(config, inputs.variables, rank or max(1, min(128, most)))


def _agreement(inputs: _Inputs) -> Any:
    options = inputs.options
    prompts = [text[:_PROMPT_TOKENS] for text in _texts(inputs)][: options.rollouts]
    return sampler_agreement(
        inputs.config,
        inputs.variables,
        prompts,
        most_tokens=options.most_tokens,
        stop_token=inputs.tokenizer.eos_id,
        engine_settings=EngineSettings(cache_tokens=options.cache_tokens, prefix_cache=False),
        seed=options.seed,
    )


def _needles(inputs: _Inputs) -> Any:
    options, context = inputs.options, inputs.config.max_position_embeddings
    lengths = [context // 8, context // 4, context // 2, context]
    if options.needle_lengths:
        lengths = [int(_number("--needle-lengths", n)) for n in options.needle_lengths.split(",")]
    depths = [_number("--needle-depths", depth) for depth in options.needle_depths.split(",")]
    if not all(0 <= depth <= 1 for depth in depths):
        raise EvaluationError(f"--needle-depths {options.needle_depths}: must lie in [0, 1]")
    return needle_grid(
        inputs.config.replace(max_position_embeddings=max(context, *lengths)),
        inputs.variables,
        inputs.tokenizer,
        lengths=lengths,
        depths=depths,
        trials=options.needle_trials,
        say=lambda cell: print(f"  {cell}", file=sys.stderr, flush=True),
    )


_PARTS: dict[str, Callable[[_Inputs], Any]] = {
    "load": _load,
    "overlap": _overlap,
    "agreement": _agreement,
    "needles": _needles,
}


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise EvaluationError(f"{name}: {text!r} is no number") from None


def _summary(part: str, result: Any) -> Any:
    """Plain values; of single tokens only what they come to."""
    plain = dict(result) if isinstance(result, dict) else result._asdict()
    if part == "agreement":
        tokens = len(plain.pop("sampler"))
        del plain["trainer"]
        plain["tokens"] = tokens
    return plain


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
