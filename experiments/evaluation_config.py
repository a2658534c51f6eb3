"""From a config file and the command line to an `EvaluationConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from zaya_jax.config import ConfigError
from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.settings import EvaluationConfig, RSAConfig, SamplingConfig, TaskConfig
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.training.config_file import (
    apply_overrides,
    field_help,
    leaf_types,
    load_config,
)
from zaya_jax.training.resolved import to_plain

_PLACEHOLDER = "nothing"  # a config file need not say which model; the command line may


def evaluation_config_dict(tasks: Mapping[str, TaskConfig]) -> ConfigDict:
    """All defaults around these tasks, locked: values may change, fields not."""
    config = to_plain(EvaluationConfig(tasks, init_from=_PLACEHOLDER))
    config["tasks"] = {name: to_plain(task) for name, task in tasks.items()}
    config["init_from"] = ""
    # Optional fields start as None, which ConfigDict would else take for their type.
    return ConfigDict(config, type_safe=False).lock()


def resolve(file_and_name: str, overrides: Sequence[tuple[str, str]]) -> EvaluationConfig:
    """The validated settings of a config file and the overrides after it.

    Raises:
      ConfigError: when the file is none of an evaluation, a field is unknown, or a value breaks a
        rule.
    """
    config = load_config(file_and_name)
    if not isinstance(config.get("tasks"), ConfigDict):
        raise ConfigError(
            f"config file {file_and_name!r} says no tasks: is it one of an evaluation? See "
            "experiments/configs/evaluation"
        )
    return to_evaluation_config(apply_overrides(config, overrides, _fields(config)))


def to_evaluation_config(config: ConfigDict) -> EvaluationConfig:
    """The validated settings.

    Raises:
      ConfigError: for a missing or unknown field, or a value that breaks a rule.
    """
    plain = config.to_dict()
    tasks = {name: _task(name, fields) for name, fields in plain.pop("tasks").items()}
    try:
        plain["engine"] = EngineSettings(**plain["engine"])
        plain["rsa"] = RSAConfig(**plain["rsa"])
        return EvaluationConfig(tasks, **plain)
    except (TypeError, KeyError) as error:
        raise EvaluationError(f"config of the evaluation: {error}") from error


def evaluation_help() -> str:
    """Every field with its default and meaning."""
    return f"{field_help(EvaluationConfig)}\n{field_help(TaskConfig, '--config.tasks.NAME.')}"


def _task(name: str, fields: dict[str, Any]) -> TaskConfig:
    try:
        return TaskConfig(**{**fields, "sampling": SamplingConfig(**fields["sampling"])})
    except (TypeError, KeyError) as error:
        raise EvaluationError(f"tasks.{name}: {error}") from error
    except EvaluationError as error:
        raise EvaluationError(f"tasks.{name}: {error}") from None


def _fields(config: ConfigDict) -> dict[str, Any]:
    """Declared type of every field by dotted name, those of the config's tasks among them."""
    fields = leaf_types(EvaluationConfig)
    del fields["tasks"]
    for name in config.tasks:
        fields |= leaf_types(TaskConfig, f"tasks.{name}.")
    return fields
