"""Tries every environment of an RLVE-Gym checkout, before a stage relies on it.

    python -m zaya_jax.rl.environments.rlve_check CHECKOUT [--hardest 5]

Each environment makes a problem at every difficulty up to `--hardest`, scores its own answer where
it has one, and an answer that means nothing. Prints what did not go well and counts; exit status 1
when there was something.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, score_response
from zaya_jax.rl.environments.rlve_gym import RLVEGym
from zaya_jax.rl.errors import RLError

NONSENSE = "I cannot tell"


@dataclasses.dataclass
class Report:
    """What was found.

    Attributes:
      environments: tried.
      problems: made.
      without_answer: environments that know no answer of their own.
      faults: what did not go well, one line each.
    """

    environments: int = 0
    problems: int = 0
    without_answer: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)


def check(gym: RLVEGym, *, hardest: int, seed: int = 5) -> Report:
    """Tries all environments at difficulties 0 to `hardest`."""
    report = Report(environments=len(gym.names))
    for name in gym.names:
        environment, answers = gym.environment(name), list[str | None]()
        for difficulty in range(hardest + 1):
            try:
                problem = environment.sample(difficulty, seed + difficulty)
            except BrokenEnvironmentError as error:
                report.faults.append(str(error))
                continue
            report.problems += 1
            own = problem.reference["answer"]
            answers.append(own)
            for answer, wanted in ((own, 1.0), (NONSENSE, 0.0)):
                if answer is None:
                    continue
                score = score_response(environment, problem, f"<answer>{answer}</answer>")
                if score.broken or score.reward != wanted:
                    kind = "its own answer" if wanted else "nonsense"
                    place = f"{environment.name} difficulty {difficulty}"
                    report.faults.append(f"{place}: {kind} scores {score.reward:g}: {score.reason}")
        report.without_answer += bool(answers) and not any(answers)
    return report


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", help="folder that holds the folder Gym")
    parser.add_argument("--hardest", type=int, default=5, help="highest difficulty to try (5)")
    options = parser.parse_args(words)
    try:
        gym = RLVEGym(options.checkout)
    except RLError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        report = check(gym, hardest=options.hardest)
    finally:
        gym.close()
    print("\n".join(report.faults))
    print(
        f"{report.environments} environments, {report.problems} problems; "
        f"{report.without_answer} without an answer of their own; {len(report.faults)} faults"
    )
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
