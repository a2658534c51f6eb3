"""A conversation on the terminal.

    python -m zaya_jax.inference.chat --checkpoint DIR

An empty line or the end of input ends it. What was said before stays in the prefix cache.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.conversation import Conversation, Message
from zaya_jax.inference.answer import read_answer
from zaya_jax.inference.command import closing_tokens, run_command, sampling_of
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import Request
from zaya_jax.inference.terminal import open_engine, writing_parser


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = writing_parser("chat", __doc__, max_tokens=1_024)
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument("--no-thinking", action="store_true", help="answer at once")
    arguments = parser.parse_args(argv)
    engine, tokenizer = open_engine(arguments, slots=1, prefix_cache=True)
    template = ChatTemplate(tokenizer)
    thinking = not arguments.no_thinking
    messages = [Message("system", arguments.system)] if arguments.system else []
    while text := _ask():
        messages.append(Message("user", text))
        rendered = template.render(
            Conversation(tuple(messages)), thinking=thinking, generation_prompt=True
        )
        prompt = tuple(token for segment in rendered.segments for token in segment.ids)
        sampling = sampling_of(
            arguments, seed=arguments.seed + len(messages), stop_tokens=closing_tokens(tokenizer)
        )
        answer = read_answer(_stream(engine, Request(prompt, sampling)), thinking=thinking)
        messages.append(Message("assistant", answer.content, answer.reasoning or None))
    return 0


def _ask() -> str:
    try:
        return input("you> ").strip()
    except EOFError:
        return ""


def _stream(engine: Engine, request: Request) -> str:
    """Prints the answer as it comes and returns it."""
    engine.submit(request)
    text = ""
    while not engine.idle:
        for update in engine.step():
            print(update.text, end="", flush=True)
            text = update.completion.text
    print()
    return text


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
