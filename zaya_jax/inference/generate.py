"""Continues prompts on the terminal.

    python -m zaya_jax.inference.generate --checkpoint DIR --prompt "Once upon a time"

Several `--prompt` run side by side. With `-` the prompt is read from standard input.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from zaya_jax.inference.command import closing_tokens, run_command, sampling_of
from zaya_jax.inference.request import Completion, Request
from zaya_jax.inference.terminal import open_engine, writing_parser


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = writing_parser("generate", __doc__, max_tokens=200)
    parser.add_argument("--prompt", action="append", required=True, metavar="TEXT")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends the text")
    parser.add_argument("--json", action="store_true", help="one JSON object per prompt")
    arguments = parser.parse_args(argv)
    engine, tokenizer = open_engine(arguments, slots=len(arguments.prompt), prefix_cache=False)
    texts = [sys.stdin.read() if text == "-" else text for text in arguments.prompt]
    requests = [
        Request(
            (tokenizer.bos_id, *tokenizer.encode(text)),
            sampling_of(
                arguments,
                seed=arguments.seed + index,
                stop=tuple(arguments.stop),
                stop_tokens=closing_tokens(tokenizer),
            ),
        )
        for index, text in enumerate(texts)
    ]
    start = time.perf_counter()
    completions = engine.generate(requests)
    seconds = time.perf_counter() - start
    for text, completion in zip(texts, completions, strict=True):
        print(_as_json(text, completion) if arguments.json else text + completion.text)
    drawn = sum(len(completion.tokens) for completion in completions)
    print(f"{drawn} tokens in {seconds:.1f} s, compiling included", file=sys.stderr)
    return 0


def _as_json(prompt: str, completion: Completion) -> str:
    return json.dumps(
        {
            "prompt": prompt,
            "text": completion.text,
            "tokens": completion.tokens,
            "log_probabilities": completion.log_probabilities,
            "finish_reason": str(completion.finish_reason),
        },
        ensure_ascii=False,
    )


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
