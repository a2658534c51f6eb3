"""Checkpoints of LoRA runs: read as merged models, converted, exported for PEFT, or refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.hub_folders import (
    BFLOAT16,
    TINY,
    new_keys,
    random_tensors,
    read_folder,
    write_folder,
)
from tests.checkpoint.test_run_export import save_run
from zaya_jax.checkpoint.adapter_reader import BASE_CHECKSUM, AdapterReader, base_checksum
from zaya_jax.checkpoint.convert import convert
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.layouts import (
    LAYOUTS,
    tensors_from_variables,
    transformers_layout,
    variables_from_tensors,
)
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.checkpoint.open import open_checkpoint
from zaya_jax.checkpoint.peft import export_peft
from zaya_jax.checkpoint.skip_bias import SkipBias
from zaya_jax.config import ModelConfig
from zaya_jax.lora import init_adapters, merge_adapters, params_checksum
from zaya_jax.lora_settings import LoraConfig

LORA = LoraConfig(rank=2, alpha=6.0, targets=("attention", "experts", "router"))
BALANCING = {"biases": np.zeros((3, 13), np.float32)}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)


def base_variables(config: ModelConfig = TINY) -> dict[str, Any]:
    tensors = random_tensors("transformers", config)
    variables = variables_from_tensors(LAYOUTS["transformers"].rules(config), config, tensors)
    return {**variables, "balancing": BALANCING}


def adapters_of(params: Any, lora: LoraConfig = LORA, seed: int = 0) -> dict[str, Any]:
    """Trained adapters: B is not zero."""
    made = init_adapters(jax.random.key(seed), params, lora)
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: (np.asarray(leaf) + rng.normal(0, 0.1, leaf.shape)).astype(np.float32), made
    )


def save_adapters(
    run: Path,
    base: Path,
    params: Any,
    *,
    config: ModelConfig = TINY,
    lora: LoraConfig = LORA,
    balancing: Any = BALANCING,
    seed: int = 0,
) -> Any:
    """A LoRA run on `base`; returns what its adapters make of `params`."""
    adapters = adapters_of(params, lora, seed)
    fields = {**dataclasses.asdict(lora), "targets": list(lora.targets)}
    checksum = int(params_checksum(jax.tree.map(jnp.asarray, params)))
    record = {"lora": fields, "init_from": str(base)}
    save_run(run, {"params": adapters, "balancing": balancing}, config, record)
    _note(run, {BASE_CHECKSUM: checksum})
    merged: Any = jax.jit(lambda p, a: merge_adapters(p, a, lora))(params, adapters)
    return merged


def _note(run: Path, more: dict[str, Any]) -> None:
    """Adds to the metadata what training notes there."""
    from zaya_jax.checkpoint.manifest import write_manifest

    step = run / "checkpoints" / "7"
    file = step / "metadata" / "metadata"
    file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    write_manifest(step)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a run `base` and a LoRA run `run` on it, and the merged parameters."""
    folder = tmp_path_factory.mktemp("lora")
    variables = base_variables()
    save_run(folder / "base", variables, TINY, {})
    return folder, save_adapters(folder / "run", folder / "base", variables["params"])


def assert_close(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-6), found, wanted)


def test_a_lora_run_is_read_as_the_merged_model(trained: tuple[Path, Any]) -> None:
    folder, merged = trained
    config, variables = load_checkpoint(folder / "run")
    assert config == TINY
    assert_close(variables, {"params": merged, "balancing": BALANCING})
    size = sum(f.stat().st_size for f in (folder / "run").rglob("*") if f.is_file())
    whole = sum(f.stat().st_size for f in (folder / "base").rglob("*") if f.is_file())
    assert size < whole  # no checkpoint repeats the frozen parameters


def test_converting_merges(trained: tuple[Path, Any], tmp_path: Path) -> None:
    folder, merged = trained
    convert(folder / "run", tmp_path / "orbax", layout="orbax")
    _, variables = load_checkpoint(tmp_path / "orbax")
    assert_close(variables["params"], merged)
    convert(folder / "run", tmp_path / "released", skip_bias=SkipBias.KEEP)
    named = tensors_from_variables(
        transformers_layout(TINY), TINY, {"params": merged, "balancing": BALANCING}
    )
    found = read_folder(tmp_path / "released")
    for name, tensor in named:
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=2e-6, err_msg=name)


def test_both_checksums_agree(trained: tuple[Path, Any], tmp_path: Path) -> None:
    """On the device and on disk, also for released bfloat16 tensors."""
    folder, _ = trained
    tensors = random_tensors("transformers", TINY, BFLOAT16)
    write_folder(tmp_path / "released", new_keys(), tensors)
    for path in (folder / "base", tmp_path / "released"):
        _, variables = load_checkpoint(path)
        on_device = int(jax.jit(params_checksum)(variables["params"]))
        assert base_checksum(open_checkpoint(path)) == on_device


def test_a_lora_run_may_begin_from_another(trained: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = trained
    _, first = load_checkpoint(folder / "run")
    lora = LoraConfig(rank=1, targets=("router",))
    merged = save_adapters(tmp_path / "second", folder / "run", first["params"], lora=lora, seed=1)
    _, variables = load_checkpoint(tmp_path / "second")
    assert_close(variables["params"], merged)


def test_another_base_or_none_is_refused(tmp_path: Path) -> None:
    variables = base_variables()
    save_run(tmp_path / "base", variables, TINY, {})
    save_adapters(tmp_path / "run", tmp_path / "base", variables["params"])
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(CheckpointError, match=r"adapters of the model init_from=.* is not there"):
        load_checkpoint(tmp_path / "run")
    variables["params"]["final_norm"]["weight"][3] += 1e-3
    save_run(tmp_path / "base", variables, TINY, {})
    with pytest.raises(CheckpointError, match="other parameters than those the adapters of"):
        load_checkpoint(tmp_path / "run")
    narrow = TINY.replace(hidden_size=16, num_query_heads=2, num_kv_heads=1)
    shutil.rmtree(tmp_path / "base")
    save_run(tmp_path / "base", base_variables(narrow), narrow, {})
    with pytest.raises(CheckpointError, match=r"has shapes .* asks for"):
        load_checkpoint(tmp_path / "run")


def peft_products(folder: Path, config: ModelConfig) -> dict[str, np.ndarray]:
    """What PEFT adds to each weight, by its own reading of the format."""
    settings = json.loads((folder / "adapter_config.json").read_text())
    tensors = read_folder(folder)
    products = {}
    for name in [name for name in tensors if name.endswith("lora_A.weight")]:
        a, b = tensors[name], tensors[name.replace("lora_A", "lora_B")]
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        if ".experts" in module:
            count = config.num_experts
            a = a.reshape(count, -1, a.shape[1])
            b = b.reshape(b.shape[0], -1, count)
            product = np.einsum("ore,eri->eoi", b, a)
            wrapped = module.endswith(".base_layer")
            module = module.removesuffix(".base_layer")
            key = f"{module}.{'gate_up_proj' if wrapped else 'down_proj'}"
        else:
            product, key = b @ a, f"{module}.weight"
        products[key] = product * settings["lora_alpha"] / settings["r"]
    return products


def test_peft_gets_every_product_under_its_own_name(
    trained: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, merged = trained
    export_peft(folder / "run", tmp_path / "peft", "Zyphra/ZAYA1-8B")
    settings = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "Zyphra/ZAYA1-8B"
    assert set(settings["target_parameters"]) == {
        "mlp.experts.gate_up_proj",
        "mlp.experts.down_proj",
    }
    assert len(settings["target_modules"]) == 5 + 4
    rules = transformers_layout(TINY)
    before = dict(tensors_from_variables(rules, TINY, base_variables()))
    after = dict(tensors_from_variables(rules, TINY, {"params": merged, "balancing": BALANCING}))
    products = peft_products(tmp_path / "peft", TINY)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert set(products) == changed
    for name, product in products.items():
        np.testing.assert_allclose(before[name] + product, after[name], atol=2e-6, err_msg=name)


def test_what_adapters_cannot_say_is_not_exported(
    trained: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, _ = trained
    with pytest.raises(CheckpointError, match="holds a whole model and no adapters"):
        export_peft(folder / "base", tmp_path / "peft")
    params = base_variables()["params"]
    moved = {"biases": BALANCING["biases"] + 0.5}
    save_adapters(tmp_path / "moved", folder / "base", params, balancing=moved)
    with pytest.raises(CheckpointError, match="moved the router's balancing biases"):
        export_peft(tmp_path / "moved", tmp_path / "peft")
    longer = TINY.replace(rope_theta=5e6)
    save_adapters(tmp_path / "longer", folder / "base", params, config=longer)
    with pytest.raises(CheckpointError, match=r"changed model\.rope_theta from 1000000\.0 to 5"):
        export_peft(tmp_path / "longer", tmp_path / "peft")
    assert not (tmp_path / "peft").exists()


def test_experts_alone_need_no_second_wrapper(trained: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = trained
    lora = dataclasses.replace(LORA, targets=("experts",))
    save_adapters(tmp_path / "run", folder / "base", base_variables()["params"], lora=lora)
    assert isinstance(open_checkpoint(tmp_path / "run"), AdapterReader)
    export_peft(tmp_path / "run", tmp_path / "peft")
    settings = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert settings["target_modules"] is None
    assert len(peft_products(tmp_path / "peft", TINY)) == 2 * TINY.num_layers
