"""Our models as models of lm-evaluation-harness.

    python -m zaya_jax.evaluation.harness --checkpoint DIR --tasks arc_easy,hellaswag

or, from Python, `lm_eval.simple_evaluate(model=harness_class()(config, variables, tokenizer), …)`.
Needs the extra `harness`, but only where the harness itself is used: `HarnessModel` has the three
methods the harness asks for and knows nothing of it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.config import ModelConfig
from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.conversation import Conversation, Message
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.scoring import Scored, likelihoods
from zaya_jax.inference.command import (
    Parser,
    add_model_options,
    closing_tokens,
    find_tokenizer,
    run_command,
)
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import Request, SamplingParams
from zaya_jax.inference.settings import EngineSettings

_DEFAULT_TOKENS = 256  # the harness's own, where a task names no number
# What tasks may ask of generation beside `until`; anything else would be ignored silently.
_GENERATION = (
    "until",
    "max_gen_toks",
    "do_sample",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
)


class HarnessModel:
    """The interface of `lm_eval.api.model.LM`: two ways of scoring, one of generating."""

    def __init__(
        self,
        config: ModelConfig,
        variables: dict[str, Any],
        tokenizer: Tokenizer,
        *,
        engine_settings: EngineSettings | None = None,
        rows_at_once: int = 8,
    ) -> None:
        """Takes a loaded model; the engine is made when something is to be generated."""
        super().__init__()
        self._config, self._variables, self._tokenizer = config, variables, tokenizer
        self._settings, self._rows = engine_settings or EngineSettings(), rows_at_once
        self._engine: Engine | None = None
        self._rendered: dict[str, list[int]] = {}

    @property
    def tokenizer_name(self) -> str:
        """For the harness's caches."""
        return f"{self._tokenizer.name}-{self._tokenizer.fingerprint[:12]}"

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Names the only template there is; for the harness's caches."""
        return "zaya_jax.data.chat" if chat_template else ""

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as text with control tokens; thinking is off, as scoring needs it.

        Without `add_generation_prompt` the last message is an answer that has only begun.
        """
        messages = [Message(own["role"], own["content"]) for own in chat_history]
        begun = "" if add_generation_prompt else messages.pop().content
        rendered = ChatTemplate(self._tokenizer).render(
            Conversation(tuple(messages)), thinking=False, generation_prompt=True
        )
        ids = [token for segment in rendered.segments for token in segment.ids]
        ids += self._tokenizer.encode(begun) if begun else []
        text = self._tokenizer.decode(ids, keep_special=True)
        self._rendered[text] = ids  # its text might be split into other tokens
        return text

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Log-likelihood of each `args = (context, continuation)`, and whether greedy gives it.

        A context that is too long loses its beginning.
        """
        rows = []
        for request in requests:
            context, continuation = request.args
            before, after = self._pair(context, continuation)
            room = max(self._config.max_position_embeddings + 1 - len(after), 1)
            before = before[-room:]
            rows.append(Scored([*before, *after], len(before)))
        found = likelihoods(self._config, self._variables, rows, rows_at_once=self._rows)
        return [(own.log_likelihood, own.is_greedy) for own in found]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Log-likelihood of each whole text, `args = (text,)`.

        Texts longer than the context are scored in windows: every token once, each with as much
        before it as the window has.
        """
        rows, owners = [], []
        for number, request in enumerate(requests):
            (text,) = request.args
            ids = [self._tokenizer.bos_id, *self._tokenizer.encode(text)]
            windows = rolling_windows(len(ids), self._config.max_position_embeddings)
            rows += [Scored(ids[first:end], start - first) for first, start, end in windows]
            owners += [number] * len(windows)
        found = likelihoods(self._config, self._variables, rows, rows_at_once=self._rows)
        sums = [0.0] * len(requests)
        for number, own in zip(owners, found, strict=True):
            sums[number] += own.log_likelihood
        return sums

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continuation of each `args = (context, settings)` up to one of `settings["until"]`.

        Greedy unless the settings give a temperature. A context that is too long loses its
        beginning.

        Raises:
          EvaluationError: for a setting that is not known here.
        """
        if self._engine is None:
            self._engine = Engine(self._config, self._variables, self._tokenizer, self._settings)
        asked = [self._request(*request.args) for request in requests]
        return [completion.text for completion in self._engine.generate(asked)]

    def _request(self, context: str, settings: Mapping[str, Any]) -> Request:
        unknown = sorted(set(settings) - set(_GENERATION))
        if unknown:
            raise EvaluationError(
                f"generation setting {unknown[0]!r} is not supported; there are "
                f"{', '.join(_GENERATION)}"
            )
        until = settings.get("until") or []
        until = [until] if isinstance(until, str) else until
        greedy = settings.get("do_sample") is False
        sampling = SamplingParams(
            max_tokens=settings.get("max_gen_toks", _DEFAULT_TOKENS),
            temperature=0.0 if greedy else float(settings.get("temperature") or 0.0),
            top_p=settings.get("top_p", 1.0),
            top_k=settings.get("top_k", 0),
            min_p=settings.get("min_p", 0.0),
            repetition_penalty=settings.get("repetition_penalty", 1.0),
            seed=settings.get("seed", 0),
            stop=tuple(text for text in until if text),
            stop_tokens=closing_tokens(self._tokenizer),
        )
        cache = self._settings.pages * self._settings.page_size
        room = min(self._config.max_position_embeddings, cache) - sampling.max_tokens
        if room < 1:
            raise EvaluationError(
                f"max_gen_toks={sampling.max_tokens} leaves no room for a prompt in the context"
            )
        return Request(tuple(self._context(context)[-room:]), sampling)

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both; text is split as a whole, with spaces at the seam in the continuation."""
        if context in self._rendered:
            return self._rendered[context], self._tokenizer.encode(continuation)
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        before = self._context(context)
        whole = [self._tokenizer.bos_id, *self._tokenizer.encode(context + continuation)]
        # Where the seam falls inside a token, that token belongs to the continuation.
        seam = min(len(before), len(whole) - 1) if continuation else len(whole)
        return whole[:seam], whole[seam:]

    def _context(self, context: str) -> list[int]:
        if context in self._rendered:
            return self._rendered[context]
        return [self._tokenizer.bos_id, *(self._tokenizer.encode(context) if context else [])]


def rolling_windows(length: int, most: int) -> list[tuple[int, int, int]]:
    """(first, start, end) of windows over `length` tokens, the first of which is never scored.

    Tokens start to end - 1 are scored with first to end - 2 as input, at most `most` of them. The
    last window reaches back as far as it can.
    """
    windows = []
    for start in range(1, length, most):
        end = min(start + most, length)
        windows.append((max(end - 1 - most, 0), start, end))
    return windows


def harness_class() -> type:
    """`HarnessModel` as a subclass of the harness's `LM`, which its functions insist on.

    Raises:
      EvaluationError: without the library.
    """
    return type("ZayaLM", (HarnessModel, _library("lm_eval.api.model").LM), {})


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = Parser(prog="python -m zaya_jax.evaluation.harness", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--tasks", required=True, metavar="A,B", help="names of the harness")
    parser.add_argument("--task-folder", metavar="DIR", help="more tasks, as YAML files")
    parser.add_argument("--shots", type=int, help="examples in the prompt; default: the task's own")
    parser.add_argument("--limit", type=int, help="only the first so many documents of a task")
    parser.add_argument("--chat", action="store_true", help="ask in the chat template")
    parser.add_argument("--output", metavar="FILE", help="results as JSON")
    arguments = parser.parse_args(argv)
    library, tasks = _library("lm_eval"), _library("lm_eval.tasks")
    tokenizer = find_tokenizer(arguments.checkpoint, arguments.tokenizer)
    config, variables = load_checkpoint(arguments.checkpoint)
    settings = EngineSettings(cache_tokens=arguments.cache_tokens)
    model = harness_class()(config, variables, tokenizer, engine_settings=settings)
    results = library.simple_evaluate(
        model=model,
        tasks=arguments.tasks.split(","),
        task_manager=tasks.TaskManager(include_path=arguments.task_folder),
        num_fewshot=arguments.shots,
        limit=arguments.limit,
        apply_chat_template=arguments.chat,
        log_samples=False,
    )
    print(_library("lm_eval.utils").make_table(results))
    if arguments.output:
        text = json.dumps(results["results"], indent=2, default=str)
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
    return 0


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EvaluationError(
            f"{name} cannot be imported ({error}): pip install 'zaya_jax[harness]'"
        ) from error


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
