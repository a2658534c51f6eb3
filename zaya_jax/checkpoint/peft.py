"""Exports the adapters of a LoRA run for the PEFT library, to use with the model in transformers.

    python -m zaya_jax.checkpoint.peft RUN DST [--base-model NAME_OR_FOLDER]

RUN is a run's folder or one of its checkpoints. DST gets `adapter_config.json` and
`adapter_model.safetensors`; the base model is what `zaya_jax.checkpoint.convert` makes of the run's
`init_from`, or the release that this is. Linear layers are targeted as modules. Experts are single
parameters of three axes, which PEFT targets as parameters: its A lies expert after expert, its B
rank after rank, and the second parameter of a module wraps the first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.checkpoint.adapter_reader import AdapterReader
from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.layouts import transformers_layout
from zaya_jax.checkpoint.open import open_intact
from zaya_jax.checkpoint.safetensors_file import SafetensorsWriter
from zaya_jax.checkpoint.tensor_rule import LeafPath, TensorRule
from zaya_jax.checkpoint.unfinished import check_target, finished_folder
from zaya_jax.lora_settings import LoraConfig, LoraTarget, target_of

_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_ROOT = "base_model.model."  # PEFT's own two wrappers
_IN_LAYER = "model.layers.{layer}."
_ROOM_FOR_SMALL_FILES = 1 << 20


def export_peft(run: str | Path, target: str | Path, base_model: str | None = None) -> int:
    """Writes a new folder in PEFT's format; returns how many numbers it holds.

    Args:
      run: of a LoRA run: its folder or one of its checkpoints.
      target: must not exist, or be empty.
      base_model: what PEFT shall load below the adapters; None: the run's `init_from`.

    Raises:
      CheckpointError: when there are no adapters, or the run changed what adapters cannot say.
    """
    target = check_target(target, Path(run))
    reader = open_intact(run)
    if not isinstance(reader, AdapterReader):
        raise CheckpointError(f"{run} holds a whole model and no adapters (lora.rank is 0)")
    _check_expressible(reader)
    rules = {rule.path: rule for rule in transformers_layout(reader.config)}
    tensors = {
        name: tensor
        for path, pair in reader.adapters.items()
        for name, tensor in _named(rules[path], reader, path, *pair)
    }
    config = peft_config(
        reader.settings,
        [rules[path] for path in reader.adapters],
        base_model or str(reader.base.path),
    )
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    with finished_folder(target, nbytes + _ROOM_FOR_SMALL_FILES) as folder:
        table = {name: (tensor.shape, tensor.dtype) for name, tensor in sorted(tensors.items())}
        file = SafetensorsWriter(folder / _TENSORS, table)
        for name in table:
            file.write(name, 0, tensors[name])
        (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    return sum(tensor.size for tensor in tensors.values())


def peft_config(
    settings: LoraConfig, rules: Sequence[TensorRule], base_model: str
) -> dict[str, Any]:
    """What PEFT needs to know; it has defaults for the rest."""
    linear = [rule for rule in rules if not _is_parameter(rule)]
    parameters = [rule for rule in rules if _is_parameter(rule)]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": [_module(rule).removeprefix(_IN_LAYER) for rule in linear] or None,
        "target_parameters": [_module(rule).removeprefix(_IN_LAYER) for rule in parameters] or None,
    }


def _named(
    rule: TensorRule, reader: AdapterReader, path: LeafPath, a: np.ndarray, b: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """PEFT's two tensors of every layer of one leaf."""
    for layer in range(len(a)):
        module, own_a, own_b = _module(rule).format(layer=layer), a[layer], b[layer]
        if _is_parameter(rule):
            module, _, parameter = module.rpartition(".")
            sibling = (*path[:-1], "down")
            if parameter.startswith("gate_up") and sibling in reader.adapters:
                module += ".base_layer"  # the wrapper of `down` is around this one's
            own_a = own_a.reshape(-1, own_a.shape[-1])  # [experts, rank, in] -> [experts rank, in]
            # [experts, out, rank] -> [out, rank, experts] -> [out, rank experts]
            own_b = own_b.transpose(1, 2, 0).reshape(own_b.shape[1], -1)
        yield f"{_ROOT}{module}.lora_A.weight", np.ascontiguousarray(own_a)
        yield f"{_ROOT}{module}.lora_B.weight", np.ascontiguousarray(own_b)


def _is_parameter(rule: TensorRule) -> bool:
    return target_of(rule.path) is LoraTarget.EXPERTS


def _module(rule: TensorRule) -> str:
    return rule.name.removesuffix(".weight")


def _check_expressible(reader: AdapterReader) -> None:
    """Refuses what training changed besides the adapted matrices."""
    if not np.array_equal(reader.balancing, reader.base.read_leaf(("balancing", "biases"))):
        raise CheckpointError(
            f"{reader.path}: the run moved the router's balancing biases, which PEFT has no place "
            "for; train with optimizer.balancing_learning_rate=0, or merge instead: "
            "python -m zaya_jax.checkpoint.convert"
        )
    for name in ("rope_theta", "sliding_rope_theta"):
        before, after = getattr(reader.base.config, name), getattr(reader.config, name)
        if before != after:
            raise CheckpointError(
                f"{reader.path}: the run changed model.{name} from {before} to {after}, which PEFT "
                "has no place for; merge instead: python -m zaya_jax.checkpoint.convert"
            )


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = Parser(prog="python -m zaya_jax.checkpoint.peft", description=__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a LoRA run")
    parser.add_argument("target", metavar="DST", type=Path, help="folder to make")
    parser.add_argument("--base-model", help="what PEFT loads below; default: the run's init_from")
    options = parser.parse_args(argv)
    count = export_peft(options.run, options.target, options.base_model)
    print(f"{options.run} -> {options.target}: {count:,} numbers for PEFT")
    return 0


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
