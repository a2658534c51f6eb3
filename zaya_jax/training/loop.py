"""The training loop: read a batch, dispatch a step, then look at the step before.

A step's numbers are read only after the next step was dispatched, so the device never waits for
Python. Before validation, checkpoints and the end, the last step's numbers are read at once.

At a boundary the order is: metrics of the step, validation, checkpoint. So everything about the
steps up to a checkpoint is in the metrics file before that checkpoint exists, and a resumed run
continues one gapless story.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from zaya_jax.checkpoint.settings import Tier
from zaya_jax.checkpoint.tiers import TieredCheckpoints
from zaya_jax.data.checks import check_batch
from zaya_jax.data.pipeline import BatchIterator
from zaya_jax.model_size import training_flops_per_token
from zaya_jax.parallel.hosts import any_process, wait_for_all
from zaya_jax.training.clock import Clock
from zaya_jax.training.guard import Guard, Outcome
from zaya_jax.training.heartbeat import Heartbeat
from zaya_jax.training.metrics import train_record
from zaya_jax.training.placement import Placement
from zaya_jax.training.preemption import StopSignal
from zaya_jax.training.probe import Probe
from zaya_jax.training.profile import Profiler
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.startup import saved_template, training_part
from zaya_jax.training.state import TrainState, abstract_batch
from zaya_jax.training.step import StepMetrics, train_step
from zaya_jax.training.validation import TrainingError, Validator
from zaya_jax.training.watchdog import BadLossPolicy, guarded_step
from zaya_jax.training.writers import MultiWriter

# Step and state -> the next ones, and metrics; None where the run went back to a checkpoint.
TakeStep = Callable[[int, TrainState], tuple[int, TrainState, StepMetrics | None]]


@dataclasses.dataclass
class Loop:
    """The parts that one run is made of; `train` drives them."""

    config: RunConfig
    placement: Placement
    workdir: Path
    batches: BatchIterator
    validator: Validator
    checkpoints: TieredCheckpoints
    writers: MultiWriter
    stop: StopSignal
    clock: Clock
    metadata: Mapping[str, Any]  # saved with every checkpoint

    def __post_init__(self) -> None:
        self._heartbeat = Heartbeat(self.workdir, jax.process_index())
        is_one_of_several = jax.process_count() > 1 and self.config.train.probe_interval > 0
        self._probe = Probe() if is_one_of_several else None

    def train(self, state: TrainState) -> TrainState:
        """Trains from `state`, which it gives up, to the last step or until asked to stop.

        On return every checkpoint is durable, one of them of the returned state.

        Raises:
          TrainingError: when loss or gradient is not finite and `guard.policy` is stop, or too many
            steps were bad.
          CheckpointError: when a checkpoint cannot be written.
          DataError: for a batch that the model cannot take.
        """
        step, total = int(state.step), self.config.train.steps
        take = self._compile(state)
        self._heartbeat.beat(step, 0.0, 0.0)
        if step == 0:
            self._validate(step, state)
        unread: tuple[int, StepMetrics] | None = None
        with Profiler(self.config.profile, self.workdir / "profile") as profiler:
            while step < total:
                profiler.before(step + 1, state)
                step, state, metrics = take(step, state)
                if metrics is None:  # gone back to a checkpoint
                    unread = None
                    continue
                profiler.after(step, metrics)
                self._report(unread)  # the step before; the device is already busy with this one
                unread = (step, metrics)

                stopping = any_process(self.stop.received is not None)
                validates, probe = self._validates_at(step), self._probe_at(step)
                is_last = stopping or step == total
                tier = self.config.checkpoint.tier_at(step, is_last=is_last)
                if validates or tier or probe:
                    self._report(unread)
                    unread = None
                if probe:
                    self._heartbeat.probe_seconds = probe.seconds()
                if validates:
                    self._validate(step, state)
                if tier:
                    self._save(step, state, tier)
                if stopping:
                    break
        self.checkpoints.wait()
        return state

    def _compile(self, state: TrainState) -> TakeStep:
        """What takes a step: reads a batch, runs the compiled program, and guards it if asked."""
        function: Any = functools.partial(train_step, self.config)
        is_guarded = self.config.guard.policy is not BadLossPolicy.STOP
        with self.clock.measure("compile"):
            placement = self.placement
            shardings = placement.shardings(state)
            batch = placement.abstract_batch(abstract_batch(self.config.data))
            inputs: tuple[Any, ...] = (state, batch)
            if is_guarded:
                function = functools.partial(guarded_step, function)
                inputs = (state, batch, jnp.float32(0))
            step = jax.jit(
                placement.between_steps(function),
                donate_argnums=0,
                out_shardings=None if shardings is None else (shardings, placement.replicated()),
            )
            self.validator.compile(state)
            with placement.in_force():
                compiled = step.lower(*inputs).compile()
            wait_for_all("compiled")
        if is_guarded:
            return functools.partial(self._guarded, Guard(self.config.guard, compiled))
        return functools.partial(self._plain, compiled)

    def _plain(
        self, compiled: Any, step: int, state: TrainState
    ) -> tuple[int, TrainState, StepMetrics | None]:
        state, metrics = compiled(state, self._next_batch())
        return step + 1, state, metrics

    def _guarded(
        self, guard: Guard, step: int, state: TrainState
    ) -> tuple[int, TrainState, StepMetrics | None]:
        state, metrics, outcome, events = guard.take(step + 1, state, self._next_batch())
        for name, detail in events:
            self._event(step + 1, name, detail)
        if outcome is Outcome.REWIND:
            self.checkpoints.wait()
            found = self.checkpoints.find_latest(self._template)
            if found is not None:
                self._event(step + 1, "rewind", f"to the checkpoint of step {found.step}")
                return found.step, self._read_state(found.step, state.base), None
            outcome = Outcome.SKIPPED
        if outcome is Outcome.SKIPPED:
            self._event(step + 1, "skip", "the batch moved nothing")
        return step + 1, state, metrics

    def _read_state(self, step: int, base: Any) -> TrainState:
        """A saved state; the data stream and frozen parameters stay as they are."""
        found = self.checkpoints.restore(step, **self._template())
        return TrainState(**found.variables, **found.training, base=base)

    def _template(self) -> dict[str, Any]:
        return saved_template(self.config, self.placement)

    def _next_batch(self) -> dict[str, Any]:
        with self.clock.measure("data_wait"):
            batch = next(self.batches)
            model = self.config.model
            check_batch(batch, model.vocab_size, model.max_position_embeddings)
            return self.placement.place_batch(batch)

    def _report(self, unread: tuple[int, StepMetrics] | None) -> None:
        """Waits for a step's numbers and writes them."""
        if unread is None:
            return
        step, metrics = unread
        jax.block_until_ready(metrics)
        interval = self.clock.end_of_step()
        record = train_record(
            step,
            metrics,
            interval,
            flops_per_token=training_flops_per_token(
                self.config.model, self.config.data.sequence_length
            ),
            goodput=self.clock.goodput,
        )
        self.writers.write(record)
        self._heartbeat.beat(step, interval.step, interval.data_wait)
        is_guarded = self.config.guard.policy is not BadLossPolicy.STOP
        for name in ("loss", "grad_norm"):
            if not is_guarded and not math.isfinite(record[name]):
                raise TrainingError(
                    f"step {step}: {name} is {record[name]}; training stopped and the checkpoints "
                    "before are intact. Lower optimizer.peak_learning_rate or lengthen "
                    "optimizer.warmup_steps"
                )

    def _validate(self, step: int, state: TrainState) -> None:
        with self.clock.measure("validation"):
            for record in self.validator.records(step, state):
                self.writers.write(record)

    def _save(self, step: int, state: TrainState, tier: Tier) -> None:
        with self.clock.measure("checkpoint"):
            self.writers.flush()
            self.checkpoints.save(
                step,
                variables=state.variables,
                training=training_part(state),
                data=self.batches.get_state(),
                metadata=self.metadata,
                tier=tier,
            )
        self._event(step, "checkpoint", "")

    def _event(self, step: int, name: str, detail: str) -> None:
        self.writers.write(
            {"kind": "event", "step": step, "time": time.time(), "name": name, "detail": detail}
        )

    def _probe_at(self, step: int) -> Probe | None:
        is_due = self._probe is not None and step % self.config.train.probe_interval == 0
        return self._probe if is_due else None

    def _validates_at(self, step: int) -> bool:
        interval = self.config.train.validation_interval
        return step == self.config.train.steps or (interval > 0 and step % interval == 0)
