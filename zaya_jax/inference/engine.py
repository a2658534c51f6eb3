"""The engine: requests in, tokens out, many at a time.

    engine = Engine(config, variables, tokenizer)
    [completion] = engine.generate([Request(tokens, SamplingParams(max_tokens=100))])

or, step by step, `submit` and `cancel` at any time and `step` until `idle`. Each step takes in one
chunk of some prompts and draws some tokens of every sequence that is ready. Sequences join and
leave between steps. When memory runs out the youngest sequence gives its pages back and is computed
anew later; what it has drawn stays.

Not safe to call from several threads; `zaya_jax.inference.service` is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any, NamedTuple

import jax
import numpy as np

from zaya_jax.config import ModelConfig
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.inference.cache import bytes_per_sequence, bytes_per_token
from zaya_jax.inference.dispatch import Dispatcher
from zaya_jax.inference.parts import make_parts, most_of_a_part, parts_for, placed, usage
from zaya_jax.inference.programs import Decoded
from zaya_jax.inference.request import (
    MOST_TOP_LOGPROBS,
    Completion,
    FinishReason,
    Request,
    check_prompt,
)
from zaya_jax.inference.sampling import Variant
from zaya_jax.inference.sequence import Sequence
from zaya_jax.inference.settings import EngineSettings, warm_up_shapes
from zaya_jax.inference.text import TextStream, allowed_tokens


class Update(NamedTuple):
    """What a step added to one request.

    Attributes:
      number: of the request, as `submit` returned it.
      completion: all of its answer so far.
      first: index of the first token that is new.
      text: the text that became certain.
    """

    number: int
    completion: Completion
    first: int
    text: str


class Engine:
    """See the module."""

    def __init__(
        self,
        config: ModelConfig,
        variables: dict[str, Any],
        tokenizer: Tokenizer | None = None,
        settings: EngineSettings | None = None,
        *,
        seed: int = 0,
        devices: Many[jax.Device] | None = None,
    ) -> None:
        """Allocates the cache, on as many devices as the settings say.

        Args:
          config: architecture.
          variables: parameters and balancing biases; copied.
          tokenizer: for text and stop strings; without it there are only tokens.
          settings: sizes.
          seed: from which requests without a seed get theirs.
          devices: that it may use, and no others; None: the first of this process.

        Raises:
          ConfigError: when the settings do not fit the model or the devices.
        """
        self.config = config
        self.tokenizer = tokenizer
        self.settings = settings or EngineSettings()
        self.version = 0
        allowed = allowed_tokens(config, tokenizer)
        self._dispatcher = Dispatcher(config, self.settings, variables, allowed, devices)
        self.programs = self._dispatcher.programs
        self._parts = make_parts(config, self.settings)
        self._seeds = np.random.default_rng(seed)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # the oldest first
        self._submitted = 0
        self._text_sent: dict[int, int] = {}

    # What callers do

    def submit(self, request: Request) -> int:
        """Queues a request; returns its number.

        Raises:
          RequestError: when it can never be served.
        """
        self.check(request)
        number = self._submitted
        self._submitted += 1
        seed = request.sampling.seed
        if seed is None:
            seed = int(self._seeds.integers(2**63))
        text = None
        if self.tokenizer is not None:
            text = TextStream(self.tokenizer, request.sampling.stop)
        completion = Completion(request.tokens)
        self._waiting.append(Sequence(number, request, completion, text, seed))
        self._text_sent[number] = 0
        return number

    def check(self, request: Request) -> None:
        """Raises what `submit` would raise; may be called from any thread."""
        config, settings = self.config, self.settings
        room = settings.part_pages * settings.page_size
        check_prompt(request, config.vocab_size, config.max_position_embeddings, room)

    def cancel(self, number: int) -> Update | None:
        """Ends a request now; None where it has ended already."""
        for sequence in (*self._running, *self._waiting):
            if sequence.number == number:
                first = len(sequence.completion.tokens)
                sequence.completion.finish_reason = FinishReason.CANCELLED
                return self._finish(sequence, first)
        return None

    def step(self) -> list[Update]:
        """Takes in a chunk of prompts and draws some tokens."""
        self._admit()
        self._take_in_prompts()
        return self._draw()

    def generate(self, requests: Many[Request]) -> list[Completion]:
        """Answers all requests; nothing else may be running."""
        numbers = [self.submit(request) for request in requests]
        finished: dict[int, Completion] = {}
        while not self.idle:
            for update in self.step():
                if update.completion.finish_reason is not None:
                    finished[update.number] = update.completion
        return [finished[number] for number in numbers]

    def load_weights(self, variables: dict[str, Any]) -> int:
        """Changes the weights between two steps; returns the version of all tokens from now on.

        Running requests go on with the keys and values they have. Prefixes are forgotten.
        """
        self._dispatcher.load(variables)
        self.version += 1
        for part in self._parts:
            if part.memory.prefixes is not None:
                part.memory.prefixes.clear()
        return self.version

    def warm_up(
        self,
        tokens: int,
        *,
        variants: Many[Variant] = (Variant(False, False, 0),),
        say: Callable[[str], Any] = lambda program: None,
    ) -> None:
        """Compiles the programs that sequences of up to so many tokens need.

        Args:
          tokens: of prompt and completion together.
          variants: of sampling.
          say: is told the name of each program before it is compiled.
        """
        settings = self.settings
        shapes = warm_up_shapes(settings, tokens)
        for rows, table in shapes.decode:
            for variant in variants:
                say(f"decode, {rows} rows, {table} pages, {variant}")
                self._dispatcher.decode(placed([], len(self._parts), rows), table, variant)
        for rows, table, length in shapes.prefill:
            say(f"prefill, {rows} rows of {length} tokens, {table} pages")
            nothing = placed([], len(self._parts), rows)
            self._dispatcher.prefill(nothing, [0] * len(nothing), table, length)

    # What can be observed

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        return not self._waiting and not self._running

    @property
    def devices(self) -> set[jax.Device]:
        """Where its weights and its cache are."""
        return self._dispatcher.devices

    @property
    def statistics(self) -> dict[str, int]:
        """Counts of what is in use."""
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            **usage(self._parts),
            "programs": len(self.programs),
            "bytes_per_token": bytes_per_token(self.config),
            "bytes_per_sequence": bytes_per_sequence(self.config),
        }

    # One step

    def _admit(self) -> None:
        """Moves waiting sequences to free slots, in order, while a first chunk of each fits."""
        while self._waiting and self._start(self._waiting[0]):
            self._running.append(self._waiting.popleft())

    def _start(self, sequence: Sequence) -> bool:
        """Gives a sequence a slot and room for a first chunk; False where there is none."""
        sequence.version = self.version
        for part in parts_for(self._parts, sequence):
            page = part.memory.reuse_prefix(sequence)
            needed = min(sequence.length, sequence.cached + self.settings.prefill_chunk)
            if not part.memory.reserve(sequence, needed):
                part.memory.give_back(sequence)
                continue
            sequence.part, sequence.slot = part.number, part.free_slots.pop()
            if not sequence.completion.tokens:
                sequence.completion.cached_tokens = sequence.cached
            if page is not None:
                self._dispatcher.restore(sequence, page)
            return True
        return False

    def _take_in_prompts(self) -> None:
        chunk = self.settings.prefill_chunk
        chosen: list[Sequence] = []
        for sequence in list(self._running):
            of_part = sum(own.part == sequence.part for own in chosen)
            if of_part == self.settings.prefill_rows or sequence.ready or sequence.slot < 0:
                continue
            if self._make_room(sequence, min(sequence.length - 1, sequence.cached + chunk)):
                chosen.append(sequence)
        chosen = [sequence for sequence in chosen if sequence.slot >= 0]
        if not chosen:
            return
        most = self.settings.row_bucket(most_of_a_part(chosen), self.settings.prefill_rows)
        rows = placed(chosen, len(self._parts), most)
        lengths = [0 if own is None else min(chunk, own.length - 1 - own.cached) for own in rows]
        table = self.settings.table_bucket(max(len(own.pages) for own in chosen))
        bucket = self.settings.token_bucket(max(lengths))
        routes = self._dispatcher.prefill(rows, lengths, table, bucket)
        for row, (own, length) in enumerate(zip(rows, lengths, strict=True)):
            if own is not None:
                own.record_routes(routes[:, row, :length].T)
                own.cached += length
                self._parts[own.part].memory.remember(own, self.version)

    def _draw(self) -> list[Update]:
        chosen = []
        for sequence in list(self._running):
            if sequence.slot >= 0 and sequence.ready:
                steps = min(self.settings.decode_steps, sequence.remaining)
                if self._make_room(sequence, sequence.cached + steps):
                    chosen.append(sequence)
        chosen = [sequence for sequence in chosen if sequence.slot >= 0]
        if not chosen:
            return []
        params = [own.request.sampling for own in chosen]
        variant = Variant(
            draws=any(own.temperature > 0 for own in params),
            filters=any(own.top_k > 0 or own.top_p < 1 or own.min_p > 0 for own in params),
            top=MOST_TOP_LOGPROBS if any(own.top_logprobs for own in params) else 0,
        )
        bucket = self.settings.row_bucket(most_of_a_part(chosen), self.settings.part_slots)
        rows = placed(chosen, len(self._parts), bucket)
        table = self.settings.table_bucket(max(len(own.pages) for own in chosen))
        decoded = self._dispatcher.decode(rows, table, variant)
        return [
            self._take_drawn(own, row, decoded) for row, own in enumerate(rows) if own is not None
        ]

    def _take_drawn(self, sequence: Sequence, row: int, decoded: Decoded) -> Update:
        completion = sequence.completion
        first, most = len(completion.tokens), sequence.request.sampling.top_logprobs
        drawn = int(np.sum(decoded.token[:, row] >= 0))
        sequence.record_routes(np.asarray(decoded.routes[:drawn, row]))
        for step in range(drawn):
            completion.log_probabilities.append(float(decoded.log_probability[step, row]))
            completion.raw_log_probabilities.append(float(decoded.raw_log_probability[step, row]))
            completion.versions.append(self.version)
            if most:
                ids = decoded.top_tokens[step, row, :most].tolist()
                values = decoded.top_log_probabilities[step, row, :most].tolist()
                completion.top.append(list(zip(ids, values, strict=True)))
            sequence.add(int(decoded.token[step, row]))
            if completion.finish_reason is not None:
                break
        sequence.cached = sequence.length - 1
        self._parts[sequence.part].memory.remember(sequence, self.version)
        return (
            self._finish(sequence, first)
            if completion.finish_reason
            else self._update(sequence, first)
        )

    # Starting and ending

    def _make_room(self, sequence: Sequence, length: int) -> bool:
        """Gets pages, if need be from younger sequences; False when it lost its own instead."""
        memory = self._parts[sequence.part].memory
        while sequence.slot >= 0 and not memory.reserve(sequence, length):
            sharing = [own for own in self._running if own.part == sequence.part]
            self._set_aside(sharing[-1])
        return sequence.slot >= 0

    def _set_aside(self, sequence: Sequence) -> None:
        """Takes slot and pages from a running sequence; it will be computed anew."""
        self._leave(sequence)
        self._waiting.appendleft(sequence)

    def _leave(self, sequence: Sequence) -> None:
        if sequence.slot >= 0:
            part = self._parts[sequence.part]
            part.memory.give_back(sequence)
            part.free_slots.append(sequence.slot)
            self._running.remove(sequence)
            sequence.slot = -1
        else:
            self._waiting.remove(sequence)

    def _finish(self, sequence: Sequence, first: int) -> Update:
        self._leave(sequence)
        if sequence.text is not None:
            sequence.text.finish()
        fed = max(0, sequence.length - 1)
        shape = (0, self.config.num_layers)
        routes = sequence.routes[:fed]
        sequence.completion.routes = np.stack(routes) if routes else np.zeros(shape, np.uint8)
        update = self._update(sequence, first)
        del self._text_sent[sequence.number]
        return update

    def _update(self, sequence: Sequence, first: int) -> Update:
        completion, text = sequence.completion, ""
        if sequence.text is not None:
            ended = completion.finish_reason is not None
            end = len(sequence.text.text) if ended else sequence.text.settled
            text = sequence.text.text[self._text_sent[sequence.number] : end]
            completion.text = sequence.text.text[:end]
            self._text_sent[sequence.number] = max(end, self._text_sent[sequence.number])
        return Update(sequence.number, completion, first, text)
