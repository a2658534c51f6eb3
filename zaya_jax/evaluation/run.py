"""Runs a task: tries at all its problems, side by side, graded and logged as they come.

Whatever a kill leaves is in the log; the same call goes on from there, and every try has a seed of
its own, so that the results do not depend on where it was stopped.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.items import Item, digest
from zaya_jax.evaluation.methods import Method, Try, derived_seed
from zaya_jax.evaluation.models import Sample, SampleError
from zaya_jax.evaluation.records import Graded, Record, RecordLog
from zaya_jax.evaluation.settings import EvaluationConfig, TaskConfig
from zaya_jax.evaluation.tasks.protocol import Task
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError

_GRADERS = 4  # answers graded at the same time


@dataclasses.dataclass(frozen=True)
class Job:
    """One task to run.

    Attributes:
      name: of the task.
      task: its problems and grader.
      config: of the task.
      method: how a try is made.
      method_name: as the command line has it.
    """

    name: str
    task: Task
    config: TaskConfig
    method: Method
    method_name: str

    @property
    def items(self) -> list[Item]:
        """The problems that are asked."""
        return list(self.task.items[: self.config.problems])


def job_header(job: Job, config: EvaluationConfig, identity: str) -> dict[str, object]:
    """What decides the records of a job, as plain values."""
    plain = dataclasses.asdict(job.config)
    return {
        "task": job.name,
        "kind": str(plain.pop("kind")),
        "source": plain.pop("source"),
        "sampling": plain["sampling"],
        "method": job.method_name,
        "rsa": dataclasses.asdict(config.rsa),
        "model": identity,
        "seed": config.seed,
        "problems": digest(job.items),
    }


async def run_job(
    job: Job,
    config: EvaluationConfig,
    identity: str,
    workdir: Path,
    progress: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """All tries of a task, in the order of its problems.

    Args:
      job: what to run.
      config: seed, concurrency and limits.
      identity: of the model.
      workdir: gets `rollouts/TASK.jsonl`, and `traces/TASK/` where a method keeps any.
      progress: is told of every new record.

    Raises:
      EvaluationError: when tries failed, after all others were made, or when too many did; when
        the model refused every question; when an earlier log does not fit.
    """
    log = RecordLog(workdir / "rollouts" / f"{job.name}.jsonl", job_header(job, config, identity))
    gate = asyncio.Semaphore(max(1, config.concurrency // job.method.width))
    failures: list[str] = []
    wanted = [(i, item, n) for i, item in enumerate(job.items) for n in range(job.config.samples)]
    with ThreadPoolExecutor(_GRADERS) as graders:

        async def one(index: int, item: Item, number: int) -> None:
            async with gate:
                trace = workdir / "traces" / job.name / f"{index}-{number}.jsonl"
                seed = derived_seed(job.name, item.id, number, config.seed)
                start = time.perf_counter()
                try:
                    made = await job.method.solve(item.prompt, seed, trace)
                except SampleError as error:
                    failures.append(f"problem {item.id!r}: {error}")
                    if len(failures) >= config.most_failures:
                        raise _gave_up(failures, len(wanted)) from error
                    return
                record = await _graded(job.task, item, number, made, start, graders)
                log.add(record)
                progress(record)

        try:
            async with asyncio.TaskGroup() as group:
                for index, item, number in wanted:
                    if (item.id, number) not in log.records:
                        group.create_task(one(index, item, number))
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from None
        finally:
            log.close()
    if failures:
        raise _gave_up(failures, len(wanted))
    records = [log.records[item.id, number] for _, item, number in wanted]
    _refuse_nothing(job, records)
    return records


async def _graded(
    task: Task, item: Item, number: int, made: Try, start: float, graders: ThreadPoolExecutor
) -> Record:
    loop = asyncio.get_running_loop()
    answers = [
        await loop.run_in_executor(graders, grade_sample, task, item, sample)
        for sample in made.samples
    ]
    if made.refusal:
        answers = [Graded("", "", 0, False, 0.0, made.refusal, None, refused=True)]
    return Record(
        item.id,
        number,
        tuple(answers),
        made.new_tokens,
        made.prefill_tokens,
        made.peak_context,
        time.perf_counter() - start,
    )


def grade_sample(task: Task, item: Item, sample: Sample) -> Graded:
    """The grade of one answer. A grader that fails is noted, not raised."""
    try:
        score = task.grade(item, sample.answer)
        reward, reason, broken = score.reward, score.reason, score.broken
    except BrokenEnvironmentError as error:
        reward, reason, broken = 0.0, str(error), True
    return Graded(
        answer=sample.answer,
        reasoning=sample.reasoning,
        new_tokens=sample.new_tokens,
        cut=sample.cut,
        reward=reward,
        reason=reason,
        vote=task.vote(sample.answer),
        broken=broken,
    )


def _first(error: BaseException) -> BaseException:
    """The first error inside groups of errors: one line is what a user wants."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _gave_up(failures: list[str], total: int) -> EvaluationError:
    return EvaluationError(
        f"{len(failures)} of {total} tries failed, the first: {failures[0]}. The same command "
        "goes on with what is missing"
    )


def _refuse_nothing(job: Job, records: list[Record]) -> None:
    answers = [answer for record in records for answer in record.answers]
    if answers and all(answer.refused for answer in answers):
        raise EvaluationError(f"{job.name}: the model refused every problem: {answers[0].reason}")
