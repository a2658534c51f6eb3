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
import jax.numpy as jnp
import numpy as np

from zaya_jax.config import ModelConfig
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.inference.cache import bytes_per_sequence, bytes_per_token, empty_cache
from zaya_jax.inference.memory import Memory
from zaya_jax.inference.programs import Decoded, decode, prefill, restore
from zaya_jax.inference.request import (
    MOST_TOP_LOGPROBS,
    Completion,
    FinishReason,
    Request,
    check_prompt,
)
from zaya_jax.inference.sampling import Variant
from zaya_jax.inference.sequence import Sequence, cache_rows, decode_rows, sampling_rows
from zaya_jax.inference.settings import EngineSettings, warm_up_shapes
from zaya_jax.inference.text import TextStream, allowed_tokens
from zaya_jax.inference.weights import weights_from_variables


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
    ) -> None:
        """Allocates the cache.

        Args:
          config: architecture.
          variables: parameters and balancing biases; copied.
          tokenizer: for text and stop strings; without it there are only tokens.
          settings: sizes.
          seed: from which requests without a seed get theirs.
        """
        self.config = config
        self.tokenizer = tokenizer
        self.settings = settings or EngineSettings()
        self.version = 0
        self.programs: set[str] = set()
        self._weights = weights_from_variables(config, variables, self.settings.expert_bits)
        shape = self.settings.cache_shape(config)
        self._cache = empty_cache(config, shape)
        self._memory = Memory(
            page_size=shape.page_size,
            pages=shape.pages,
            sliding_pages=shape.sliding_pages,
            window=config.sliding_window,
            prefix_cache=self.settings.prefix_cache,
        )
        self._allowed = jnp.asarray(allowed_tokens(config, tokenizer))
        self._seeds = np.random.default_rng(seed)
        self._free_slots = list(range(self.settings.slots))[::-1]
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
        room = settings.pages * settings.page_size
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
        bits = self.settings.expert_bits
        self._weights = weights_from_variables(self.config, variables, bits)
        self.version += 1
        if self._memory.prefixes is not None:
            self._memory.prefixes.clear()
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
                self._run_decode([], [], rows, table, variant)
        for rows, table, length in shapes.prefill:
            say(f"prefill, {rows} rows of {length} tokens, {table} pages")
            self._run_prefill([], [], rows, table, length)

    # What can be observed

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        return not self._waiting and not self._running

    @property
    def statistics(self) -> dict[str, int]:
        """Counts of what is in use."""
        remembered = self._memory.prefixes
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "free_slots": len(self._free_slots),
            "pages": self._memory.pool.pages,
            "pages_in_use": self._memory.pages_in_use,
            "sliding_pages_in_use": self._memory.sliding_pool.pages
            - self._memory.sliding_pool.free,
            "remembered_pages": len(remembered) if remembered is not None else 0,
            "programs": len(self.programs),
            "bytes_per_token": bytes_per_token(self.config),
            "bytes_per_sequence": bytes_per_sequence(self.config),
        }

    # One step

    def _admit(self) -> None:
        """Moves waiting sequences to free slots, in order, while a first chunk of each fits."""
        while self._waiting and self._free_slots:
            sequence = self._waiting[0]
            sequence.version = self.version
            page = self._memory.reuse_prefix(sequence)
            needed = min(sequence.length, sequence.cached + self.settings.prefill_chunk)
            if not self._memory.reserve(sequence, needed):
                self._memory.give_back(sequence)
                return
            self._waiting.popleft()
            sequence.slot = self._free_slots.pop()
            if not sequence.completion.tokens:
                sequence.completion.cached_tokens = sequence.cached
            if page is not None:
                self._cache = restore(self._cache, sequence.slot, page)
            self._running.append(sequence)

    def _take_in_prompts(self) -> None:
        chunk = self.settings.prefill_chunk
        chosen: list[Sequence] = []
        for sequence in list(self._running):
            if len(chosen) == self.settings.prefill_rows:
                break
            if sequence.ready or sequence.slot < 0:
                continue
            if self._make_room(sequence, min(sequence.length - 1, sequence.cached + chunk)):
                chosen.append(sequence)
        chosen = [sequence for sequence in chosen if sequence.slot >= 0]
        if not chosen:
            return
        lengths = [min(chunk, own.length - 1 - own.cached) for own in chosen]
        rows = self.settings.row_bucket(len(chosen), self.settings.prefill_rows)
        table = self.settings.table_bucket(max(len(own.pages) for own in chosen))
        bucket = self.settings.token_bucket(max(lengths))
        routes = self._run_prefill(chosen, lengths, rows, table, bucket)
        for row, (sequence, length) in enumerate(zip(chosen, lengths, strict=True)):
            sequence.record_routes(routes[:, row, :length].T)
            sequence.cached += length
            self._memory.remember(sequence, self.version)

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
        rows = self.settings.row_bucket(len(chosen), self.settings.slots)
        table = self.settings.table_bucket(max(len(own.pages) for own in chosen))
        decoded = self._run_decode(chosen, [1] * len(chosen), rows, table, variant)
        return [self._take_drawn(own, row, decoded) for row, own in enumerate(chosen)]

    def _take_drawn(self, sequence: Sequence, row: int, decoded: Decoded) -> Update:
        completion = sequence.completion
        first, most = len(completion.tokens), sequence.request.sampling.top_logprobs
        drawn = int(np.sum(decoded.token[:, row] >= 0))
        sequence.record_routes(np.asarray(decoded.routes[:drawn, :, row]))
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
        self._memory.remember(sequence, self.version)
        return (
            self._finish(sequence, first)
            if completion.finish_reason
            else self._update(sequence, first)
        )

    # Starting and ending

    def _make_room(self, sequence: Sequence, length: int) -> bool:
        """Gets pages, if need be from younger sequences; False when it lost its own instead."""
        while sequence.slot >= 0 and not self._memory.reserve(sequence, length):
            self._set_aside(self._running[-1])
        return sequence.slot >= 0

    def _set_aside(self, sequence: Sequence) -> None:
        """Takes slot and pages from a running sequence; it will be computed anew."""
        self._leave(sequence)
        self._waiting.appendleft(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._memory.give_back(sequence)
        if sequence.slot >= 0:
            self._running.remove(sequence)
            self._free_slots.append(sequence.slot)
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

    # Dispatches

    def _run_prefill(
        self, chosen: Many[Sequence], lengths: Many[int], rows: int, table: int, bucket: int
    ) -> np.ndarray:
        tokens = np.zeros((rows, bucket), np.int32)
        for row, (sequence, length) in enumerate(zip(chosen, lengths, strict=True)):
            tokens[row, :length] = sequence.tokens(sequence.cached, sequence.cached + length)
        sliding = self.settings.sliding_table(self.config, bucket)
        where = cache_rows(chosen, lengths, rows=rows, table=table, sliding_table=sliding)
        self.programs.add(f"prefill {rows}x{bucket} tokens, {table} pages")
        self._cache, routes = prefill(self.config, self._weights, self._cache, where, tokens)
        return np.asarray(routes)

    def _run_decode(
        self, chosen: Many[Sequence], lengths: Many[int], rows: int, table: int, variant: Variant
    ) -> Decoded:
        settings = self.settings
        sliding = settings.sliding_table(self.config, settings.decode_steps)
        sampling = sampling_rows(chosen, rows, self.config.vocab_size)
        extras = f"{sampling.seen is not None:d}{sampling.bias is not None:d}"
        self.programs.add(f"decode {rows} rows, {table} pages, {variant}, {extras}")
        self._cache, decoded = decode(
            self.config,
            self._weights,
            self._cache,
            cache_rows(chosen, lengths, rows=rows, table=table, sliding_table=sliding),
            decode_rows(chosen, rows),
            sampling,
            self._allowed,
            np.int32(settings.decode_steps),
            variant=variant,
            most_steps=settings.decode_steps,
        )
        return jax.device_get(decoded)
