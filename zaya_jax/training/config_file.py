"""From a config file and the command line to a `RunConfig`.

Every field lives in one dataclass, which holds its default, its type and, in the comment on its
line, its meaning. Config files see the same fields as an ml_collections `ConfigDict`; overrides on
the command line are parsed by the field's declared type.

    --config FILE.py[:NAME]      get_config(NAME) of that file; without it, the demo
    --config.SECTION.FIELD=VALUE one field changed, after the file
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import enum
import importlib.util
import inspect
import re
import traceback
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from ml_collections import ConfigDict

from zaya_jax.config import ConfigError
from zaya_jax.training.resolved import from_plain, to_plain
from zaya_jax.training.settings import RunConfig


def to_config_dict(config: Any) -> ConfigDict:
    """A dataclass of settings as a locked ConfigDict: its values may change, not its fields."""
    return ConfigDict(_tuples(to_plain(config))).lock()


def to_run_config(config: ConfigDict) -> RunConfig:
    """The validated settings of a run.

    Raises:
      ConfigError: when a value breaks a rule, or a field is missing.
    """
    return from_plain(config.to_dict())


def load_config(file_and_name: str) -> ConfigDict:
    """Runs `get_config` of `FILE.py` or `FILE.py:NAME`.

    Raises:
      ConfigError: when the file is missing, has no `get_config`, or fails. One line, with the
        place in the file.
    """
    config = call_config_file(file_and_name, "get_config")
    if not isinstance(config, ConfigDict):
        path = file_and_name.partition(":")[0]
        raise ConfigError(f"config file {path!r}: get_config returned {type(config).__name__}")
    return config


def call_config_file(
    file_and_name: str, function: str, hint: str = "", arguments: Sequence[object] = ()
) -> Any:
    """What a function of `FILE.py`, or of `FILE.py:NAME` with the name, returns.

    Of what it yields instead, a list.

    Args:
      file_and_name: where the function is, and what it is given.
      function: its name.
      hint: what a file that lacks it may be about.
      arguments: what else it is given.

    Raises:
      ConfigError: when the file is missing, lacks the function, or fails. One line, with the place
        in the file.
    """
    path_text, _, name = file_and_name.partition(":")
    path = Path(path_text)
    if not path.is_file():
        raise ConfigError(f"config file {path_text!r} does not exist")
    spec = importlib.util.spec_from_file_location("experiment_config", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"config file {path_text!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise ConfigError(f"it defines no {function}({'' if arguments else 'name=...'}){hint}")
        returned = getattr(module, function)(*[name] if name else [], *arguments)
        return list(returned) if isinstance(returned, Iterator) else returned
    except Exception as e:  # whatever a config file raises is its author's to mend
        raise ConfigError(f"config file {path_text!r}{_line_in(path, e)}: {_one_line(e)}") from e


def apply_overrides(
    config: ConfigDict,
    overrides: Sequence[tuple[str, str]],
    fields: Mapping[str, Any] | None = None,
) -> ConfigDict:
    """A copy with (dotted name, text) pairs applied in order.

    Args:
      config: to be changed.
      overrides: what to change.
      fields: declared type of every field by dotted name; None: those of `RunConfig`.

    Raises:
      ConfigError: for an unknown name, with the nearest valid one, or a value of a wrong type.
    """
    config = config.copy_and_resolve_references()
    fields = leaf_types() if fields is None else fields
    for name, text in overrides:
        if name not in fields:
            raise ConfigError(f"unknown config field {name!r}{_nearest(name, list(fields))}")
        section, _, field = name.rpartition(".")
        target = config[section] if section else config
        with target.ignore_type():
            target[field] = parse_value(name, text, fields[name])
    return config


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Takes `--config.NAME=VALUE`, `--config.NAME VALUE` and bare `--config.SWITCH` out of `argv`.

    Raises:
      ConfigError: when a value is missing.
    """
    rest: list[str] = []
    overrides: list[tuple[str, str]] = []
    types = leaf_types()
    words = iter(range(len(argv)))
    for i in words:
        if not argv[i].startswith("--config."):
            rest.append(argv[i])
            continue
        name, equals, text = argv[i].removeprefix("--config.").partition("=")
        has_next = i + 1 < len(argv) and not argv[i + 1].startswith("--")
        if (
            not equals
            and types.get(name) is bool
            and not (has_next and argv[i + 1].lower() in ("true", "false"))
        ):
            text = "true"
        elif not equals and has_next:
            text = argv[next(words)]
        elif not equals and name in types:
            raise ConfigError(f"--config.{name} needs a value: --config.{name}=VALUE")
        overrides.append((name, text))
    return rest, overrides


def leaf_types(cls: Any = RunConfig, prefix: str = "") -> dict[str, Any]:
    """Declared type of every field by dotted name."""
    leaves: dict[str, Any] = {}
    for name, kind in get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            leaves |= leaf_types(kind, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = kind
    return leaves


def parse_value(name: str, text: str, kind: Any) -> Any:
    """Text from the command line as a value of the declared type.

    Raises:
      ConfigError: when it cannot be read as that type.
    """
    if isinstance(kind, types.UnionType):
        if text.lower() in ("none", "null"):
            return None
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if kind is int:
            return int(text.replace("_", ""))
        if typing.get_origin(kind) is tuple:
            return _parse_tuple(text)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return kind(text).value
        return kind(text)
    except (KeyError, ValueError):
        raise ConfigError(f"--config.{name}={text!r} is not {_describe(kind)}") from None


def field_help(cls: Any = RunConfig, prefix: str = "--config.") -> str:
    """Every field with its default and meaning, by section, read from the dataclasses.

    Args:
      cls: dataclass of settings; fields without a default are left out.
      prefix: of every name.
    """
    lines: list[str] = []
    own = {field.name: _default(field) for field in dataclasses.fields(cls)}
    defaults = {name: to_plain(v) for name, v in own.items() if v is not dataclasses.MISSING}
    for name, kind in get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            lines += ["", *_section_help(f"{prefix}{name}.", kind, defaults[name])]
    plain = {name: v for name, v in defaults.items() if not isinstance(v, Mapping)}
    lines += ["", *_section_help(prefix, cls, plain)]
    return "\n".join(lines)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _section_help(prefix: str, cls: Any, defaults: Mapping[str, Any]) -> list[str]:
    meanings = {
        name: str(inspect.getdoc(kind)).split(".")[0]
        for name, kind in get_type_hints(cls).items()
        if isinstance(kind, type) and issubclass(kind, enum.Enum)
    }
    comments = re.findall(r"^    (\w+): [^#\n]*?# (.*)$", inspect.getsource(cls), re.MULTILINE)
    meanings |= dict(comments)
    return [f"  {f'{prefix}{n}={v}':<52} {meanings.get(n, '')}" for n, v in defaults.items()]


def _nearest(name: str, known: list[str]) -> str:
    """A hint: the whole name that is most like this one, or else the same field elsewhere."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not close:
        by_field = {full.rpartition(".")[2]: full for full in reversed(known)}
        field = difflib.get_close_matches(name.rpartition(".")[2], list(by_field), n=1, cutoff=0.6)
        close = [by_field[entry] for entry in field]
    return f"; did you mean --config.{close[0]}?" if close else "; --help lists all fields"


def _parse_tuple(text: str) -> tuple[Any, ...]:
    """(1, 2) as Python writes it, or plain words with commas between: sliding,full."""
    if text.startswith(("(", "[")):
        try:
            return tuple(ast.literal_eval(text))
        except (SyntaxError, TypeError) as error:
            raise ValueError(text) from error
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _describe(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of: " + ", ".join(member.value for member in kind)
    names = {bool: "true or false", int: "an integer", float: "a number"}
    return names.get(kind, "a list such as a,b,c")


def _tuples(tree: Any) -> Any:
    """Lists as tuples, so that a ConfigDict does not see them as changeable."""
    if isinstance(tree, dict):
        return {name: _tuples(value) for name, value in tree.items()}
    return tuple(tree) if isinstance(tree, list) else tree


def _one_line(error: Exception) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " ".join(lines) or type(error).__name__


def _line_in(path: Path, error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    numbers = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
    return f", line {numbers[-1]}" if numbers else ""
