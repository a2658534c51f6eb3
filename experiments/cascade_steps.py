"""The steps of a cascade: what one is, a config file's list of them, which have ended well.

They stand apart from the command that runs them: a module run with `python -m` exists twice, and a
config file that imported its step from there would make steps of another class.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.cascade_report import FINISHED
from zaya_jax.config import ConfigError
from zaya_jax.training.config_file import call_config_file
from zaya_jax.training.workdir import check_free


@dataclasses.dataclass(frozen=True)
class CascadeStep:
    """One command.

    Attributes:
      name: of the step and its folder.
      module: of the command, `experiments.pretrain` for example; it is given `--workdir DIR/NAME`.
      arguments: what else it is given.
      group: evaluations of one group differ by their seed alone; the report averages them.

    Raises:
      ConfigError: on construction, for a name that is no folder's, and for what is no text.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    group: str = ""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and re.fullmatch(r"\w[\w.-]*", self.name)):
            raise ConfigError(
                f"CascadeStep(name={self.name!r}): must be letters, digits, _, - and . alone, for "
                "it names a folder"
            )
        words = self.arguments
        if not (isinstance(words, tuple) and all(isinstance(word, str) for word in words)):
            raise ConfigError(
                f"CascadeStep({self.name!r}): arguments={words!r} must be a tuple of texts"
            )
        if not isinstance(self.module, str):
            raise ConfigError(f"CascadeStep({self.name!r}): module={self.module!r} must be a text")

    def command(self, workdir: Path) -> list[str]:
        """As a process is started."""
        place = ["--workdir", str(workdir / self.name)]
        return [sys.executable, "-m", self.module, *place, *self.arguments]


def is_finished(step: CascadeStep, workdir: Path) -> bool:
    """Whether the step has ended well before, with the same arguments.

    Raises:
      ConfigError: when it ended well with other arguments: what follows would not fit.
    """
    path = workdir / step.name / FINISHED
    if not path.exists():
        return False
    before = json.loads(path.read_text(encoding="utf-8"))
    if (before["module"], tuple(before["arguments"])) != (step.module, step.arguments):
        raise ConfigError(
            f"step {step.name!r} in {workdir} ran with other arguments; remove {path.parent} to "
            "run it again, or choose another --workdir"
        )
    return True


def state_of(step: CascadeStep, workdir: Path) -> str:
    """finished, running, begun (it goes on from there) or to do.

    Raises:
      ConfigError: as `is_finished` does.
    """
    if is_finished(step, workdir):
        return "finished"
    folder = workdir / step.name
    if not folder.exists():
        return "to do"
    try:
        check_free(folder)
    except ConfigError:
        return "running"
    return "begun"


def mark_finished(step: CascadeStep, workdir: Path, seconds: float) -> None:
    """Remembers that the step has ended well."""
    folder = workdir / step.name
    folder.mkdir(exist_ok=True)
    record = {**dataclasses.asdict(step), "seconds": seconds}
    partial = folder / f"{FINISHED}.partial"
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / FINISHED)


def chosen(steps: Sequence[CascadeStep], names: Sequence[str] | None) -> list[CascadeStep]:
    """All steps, or those named, in their order.

    Raises:
      ConfigError: for an unknown name.
    """
    known = [step.name for step in steps]
    for name in names or ():
        if name not in known:
            raise ConfigError(f"--only: no step {name!r}; there are {', '.join(known)}")
    return [step for step in steps if names is None or step.name in names]


def load_steps(path: str, workdir: Path) -> list[CascadeStep]:
    """What `get_steps` of the config file returns.

    Raises:
      ConfigError: when there is no such file or function, when it fails or gives something else,
        and when two steps have one name.
    """
    steps = call_config_file(path, "get_steps", arguments=(workdir,))
    if not isinstance(steps, list | tuple) or not steps:
        raise ConfigError(f"--config: {path!r}: get_steps gives {steps!r}, must be CascadeSteps")
    for step in steps:
        if not isinstance(step, CascadeStep):
            raise ConfigError(f"--config: {path!r}: get_steps gives {step!r}, no CascadeStep")
    names = [step.name for step in steps]
    double = [name for name in names if names.count(name) > 1]
    if double:
        raise ConfigError(f"--config: {path!r} has two steps named {double[0]!r}")
    return list(steps)
