"""A folder with the interface of RLVE-Gym and environments that misbehave in every way named."""

from __future__ import annotations

from pathlib import Path

BASE = """
import random, re
import numpy, torch

class Environment:
    def __init__(self, answer_markers=None):
        self.answer_markers, self.passing_reward_threshold = answer_markers, 1.0
        self.seed = self.parameter = None

    def generator(self, seed, parameter=None, timeout_second=10):
        random.seed(seed), torch.manual_seed(seed), torch.cuda.manual_seed_all(seed)
        self.seed, self.parameter = seed, dict(parameter)
        return self.generate() is not False

    def prompt_generator(self):
        return self.parameter["prompt"]

    def processor(self, output):
        output = output.split("Assistant:", 1)[-1]
        start, end = map(re.escape, self.answer_markers)
        found = re.findall(start + "(.*?)" + end, output, re.DOTALL)
        return found[-1] if found else None

    def scorer(self, output):
        answer = self.processor(output)
        if answer is None or not answer.strip().isdigit():
            return -1.0
        return float(answer.strip() == self.parameter["reference_answer"])

    def verifier(self, output):
        reward = self.scorer(output)
        return {"reward": reward, "accuracy": int(reward >= self.passing_reward_threshold),
                "format_score": int(reward > -1)}

class Controller:
    def __init__(self):
        self.level = 1
    def update(self):
        self.level *= 2
    def get_parameter_list(self):
        return [{"terms": self.level, "base": base} for base in (10, 100)]
"""
ENVIRONMENTS = """
import os, time
from Gym.environment import Environment

class Sum(Environment):
    def generate(self):
        import random
        terms = [random.randrange(self.parameter["base"]) for _ in range(self.parameter["terms"])]
        self.parameter["prompt"] = "What is " + " + ".join(map(str, terms)) + "?"
        self.parameter["reference_answer"] = str(sum(terms))

class Graded(Sum):
    def __init__(self, **named):
        super().__init__(**named)
        self.passing_reward_threshold = 0.5
    def scorer(self, output):
        answer = self.processor(output)
        return 1 / (1 + abs(int(answer) - int(self.parameter["reference_answer"])))

class Unlucky(Sum):
    def generate(self):
        return False

class Endless(Sum):
    def generate(self):
        time.sleep(1_000)

class Long(Sum):
    def generate(self):
        super().generate()
        self.parameter["prompt"] += "x" * 10 ** (3 + self.parameter["terms"])

class Restless(Sum):
    def generate(self):
        super().generate()
        self.parameter["prompt"] += os.urandom(8).hex()

class Trusting(Sum):
    def scorer(self, output):
        self.parameter["answer"] = eval(self.processor(output))
        return -1.0

class Secret(Sum):
    def generate(self):
        super().generate()
        del self.parameter["reference_answer"]
    def scorer(self, output):
        return -1.0

class PolyaModel(Sum):
    pass

identifier2environment = {c.__name__: c for c in (
    Sum, Graded, Unlucky, Endless, Long, Restless, Trusting, Secret, PolyaModel)}
"""
CONTROLLERS = """
from Gym.environment import Controller
from Gym.environments import identifier2environment
identifier2controller = {name: Controller for name in identifier2environment}
"""


def write_checkout(folder: Path, environments: str = ENVIRONMENTS) -> Path:
    """A checkout in the folder, open to the sandbox's user."""
    files = {
        "__init__.py": "",
        "environment.py": BASE,
        "environments/__init__.py": environments,
        "parameter_controllers/__init__.py": CONTROLLERS,
    }
    for name, text in files.items():
        path = folder / "Gym" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folder.chmod(0o755)
    return folder
