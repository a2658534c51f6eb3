"""Every way in which a released folder can be wrong is one error that names tensor and file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.checkpoint.hub_folders import (
    TINY,
    Tensors,
    new_keys,
    random_tensors,
    v1_keys,
    v2_keys,
    write_folder,
    write_safetensors,
)
from zaya_jax.checkpoint.convert import convert
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.checkpoint.open import open_checkpoint
from zaya_jax.config import ConfigError

KEYS = {"transformers": new_keys(), "zyphra": v2_keys()}
FC1 = "model.layers.5.zaya_block.experts.local_experts.{}.linear_fc1.weight"
INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00003.safetensors"


def refused(folder: Path, message: str, *, because_of: str = "") -> None:
    """Nothing opens, converts or loads the folder; the error says why and where."""
    target = folder.parent / "converted"
    with pytest.raises((CheckpointError, ConfigError), match=message) as error:
        convert(folder, target)
    assert (because_of or str(folder)) in str(error.value)
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]
    with pytest.raises((CheckpointError, ConfigError), match=message):
        load_checkpoint(folder)


Change = Callable[[Tensors], None]


def drop(name: str) -> Change:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, array: np.ndarray) -> Change:
    return lambda tensors: tensors.update({name: array})


def rename(old: str, new: str) -> Change:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def renumber_experts(tensors: Tensors) -> None:
    """Numbers as text-sorting code makes them: two digits everywhere."""
    for name in [name for name in tensors if ".local_experts." in name]:
        head, tail = name.split(".local_experts.")
        number, rest = tail.split(".", 1)
        tensors[f"{head}.local_experts.{int(number):02d}.{rest}"] = tensors.pop(name)


def shift_experts(tensors: Tensors) -> None:
    """A shard of the last experts only, in a model of twelve."""
    for number in range(10):
        del tensors[FC1.format(number)]


def transpose(name: str) -> Change:
    return lambda tensors: tensors.update({name: np.ascontiguousarray(tensors[name].T)})


WRONG_TENSORS: dict[str, tuple[str, Change, str]] = {
    "missing": (
        "transformers",
        drop("model.layers.1.self_attn.qk_norm.temp"),
        r"lacks tensor 'model\.layers\.1\.self_attn\.qk_norm\.temp' \(1 in all\)",
    ),
    "missing balancing biases": (
        "zyphra",
        drop("model.layers.3.zaya_block.router.balancing_biases"),
        "lacks tensor 'model.layers.3.zaya_block.router.balancing_biases'",
    ),
    "missing router norm": (
        "transformers",
        drop("model.layers.0.mlp.gate.router_mlp.norm.weight"),
        "lacks tensor 'model.layers.0.mlp.gate.router_mlp.norm.weight'",
    ),
    "missing final scale": (
        "zyphra",
        drop("model.res_scale.residual_scale"),
        "lacks tensor 'model.res_scale.residual_scale'",
    ),
    "extra": (
        "transformers",
        put("model.layers.0.mlp.shared.weight", np.zeros(2, np.float32)),
        r"model\.safetensors: unknown tensor 'model\.layers\.0\.mlp\.shared\.weight'",
    ),
    "extra state scale in the first layer": (
        "transformers",
        put("model.layers.0.mlp.gate.router_states_scale", np.zeros(16, np.float32)),
        "unknown tensor 'model.layers.0.mlp.gate.router_states_scale'",
    ),
    "a head though it is tied": (
        "transformers",
        put("lm_head.weight", np.zeros((48, 32), np.float32)),
        "unknown tensor 'lm_head.weight'.*tied",
    ),
    "renamed": (
        "transformers",
        rename("model.norm.weight", "model.norms.weight"),
        r"lacks tensor 'model.norm.weight' .*unknown tensor 'model.norms.weight'.*renamed",
    ),
    "two names of one": (
        "transformers",
        put("model.layers.1.self_attn.temp", np.zeros(2, np.float32)),
        "'model.layers.1.self_attn.qk_norm.temp' and 'model.layers.1.self_attn.temp' are two names",
    ),
    "wrongly shaped": (
        "zyphra",
        put("model.layers.1.input_norm.weight", np.zeros(33, np.float32)),
        r"model\.safetensors: tensor 'model\.layers\.1\.input_norm\.weight' has shape \[33\]"
        r", config\.json asks for \[32\]",
    ),
    "wrong number of axes": (
        "transformers",
        put("model.norm.weight", np.zeros((1, 32), np.float32)),
        r"tensor 'model.norm.weight' has shape \[1, 32\]",
    ),
    "no unit axis": (
        "transformers",
        put(
            "model.layers.0.self_attn.qkv_proj.conv_qk_depthwise.weight",
            np.zeros((48, 2), np.float32),
        ),
        r"conv_qk_depthwise.weight' has shape \[48, 2\], config.json asks for \[48, 1, 2\]",
    ),
    "transposed": (
        "transformers",
        transpose("model.layers.2.self_attn.qkv_proj.k_proj.weight"),
        r"k_proj.weight' has shape \[32, 16\], .* \[16, 32\]: transposed",
    ),
    "transposed expert": (
        "zyphra",
        transpose(FC1.format(11)),
        r"local_experts.11.linear_fc1.weight' has shape \[32, 48\].*transposed",
    ),
    "layers of two dtypes": (
        "transformers",
        put("model.layers.2.input_layernorm.weight", np.zeros(32, ml_dtypes.bfloat16)),
        "'model.layers.2.input_layernorm.weight' is bfloat16.*must be alike",
    ),
    "experts numbered as text": (
        "zyphra",
        renumber_experts,
        r"lacks tensor '.*local_experts\.0\.linear_fc1.*unknown tensor '.*local_experts\.0",
    ),
    "experts from ten on": (
        "zyphra",
        shift_experts,
        r"lacks tensor 'model\.layers\.5\.zaya_block\.experts\.local_experts\.0\.",
    ),
    "one expert too many": (
        "zyphra",
        put(FC1.format(12), np.zeros((48, 32), np.float32)),
        "unknown tensor 'model.layers.5.zaya_block.experts.local_experts.12.linear_fc1.weight'",
    ),
    "no known layout": (
        "transformers",
        lambda tensors: (
            [tensors.pop(name) for name in list(tensors) if "layernorm" in name] and None
        ),
        "layout cannot be told",
    ),
    "both layouts": (
        "transformers",
        put("model.layers.0.input_norm.weight", np.zeros(32, np.float32)),
        "layout cannot be told: tensor names contain both",
    ),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_wrong_tensors(name: str, tmp_path: Path):
    layout, change, message = WRONG_TENSORS[name]
    tensors = random_tensors(layout, TINY)
    change(tensors)
    refused(write_folder(tmp_path / "model", KEYS[layout], tensors), message)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("layout", "tensor"),
    [
        ("zyphra", FC1.format(10)),
        ("transformers", "model.layers.2.mlp.experts.down_proj"),
        ("transformers", "model.layers.2.mlp.gate.balancing_biases"),
    ],
)
def test_numbers_that_are_none(layout: str, tensor: str, dtype: type, value: float, tmp_path: Path):
    tensors = random_tensors(layout, TINY, dtype)
    tensors[tensor].reshape(-1)[-1] = value
    folder = write_folder(tmp_path / "model", KEYS[layout], tensors)
    refused(folder, rf"model\.safetensors: tensor '{tensor}' holds {value}")


def test_a_tensor_full_of_nan(tmp_path: Path):
    tensors = random_tensors("transformers", TINY)
    tensors["model.norm.weight"][:] = np.nan
    folder = write_folder(tmp_path / "model", KEYS["transformers"], tensors)
    refused(folder, "tensor 'model.norm.weight' holds nan")


WRONG_CONFIGS: dict[str, tuple[str, dict, str]] = {
    "too few layers": (
        "transformers",
        new_keys(TINY.replace(num_layers=2)),
        r"2 layers.*layers\.2\.",
    ),
    "too many layers": (
        "transformers",
        new_keys(TINY.replace(num_layers=4)),
        r"4 layers.*layers\.2\.",
    ),
    "too many layers, v1": (
        "zyphra",
        v1_keys(TINY.replace(num_layers=5)),
        r"10 layers.*layers\.5\.",
    ),
    "new config, old tensors": ("zyphra", new_keys(), "new configuration.*of the zyphra layout"),
    "v2 config, new tensors": ("transformers", v2_keys(), "v2 configuration.*transformers layout"),
    "v1 config, new tensors": ("transformers", v1_keys(), "v1 configuration.*transformers layout"),
    "twice the heads": (
        "transformers",
        new_keys(num_attention_heads=8),
        "q_proj.weight'.*num_attention_heads gives 8 heads of 8 channels, the tensor has 4",
    ),
    "twice the heads, v2": (
        "zyphra",
        v2_keys(num_attention_heads=8),
        "linear_q.weight'.*num_attention_heads gives 8 heads of 8 channels, the tensor has 4",
    ),
    "fewer experts": ("transformers", new_keys(num_experts=11), r"\[12, 17\]|has shape \[1[23], "),
    "untied, but no head": (
        "transformers",
        new_keys(tie_word_embeddings=False),
        "lacks tensor 'lm_head.weight'",
    ),
    "list for a scalar": ("zyphra", v2_keys(ffn_hidden_size=[0, 48]), "ffn_hidden_size="),
    "two experts a token": ("zyphra", v2_keys(num_experts_per_tok=2), "num_experts_per_tok=2"),
    "clamped temperatures": ("zyphra", v2_keys(clamp_temp=True), "clamp_temp=true"),
    "unknown RoPE": (
        "transformers",
        new_keys(rope_parameters={"rope_type": "yarn", "rope_theta": 1e6}),
        "'yarn' is unknown",
    ),
}


@pytest.mark.parametrize("name", WRONG_CONFIGS)
def test_configurations_that_do_not_belong(name: str, tmp_path: Path):
    layout, keys, message = WRONG_CONFIGS[name]
    refused(write_folder(tmp_path / "model", keys, random_tensors(layout, TINY)), message)


def sharded(folder: Path) -> Path:
    return write_folder(folder, KEYS["zyphra"], random_tensors("zyphra", TINY), shards=3)


def edit_index(folder: Path, change: Callable[[dict], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_a_missing_shard(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    (folder / SECOND).unlink()
    refused(folder, f"{SECOND} is missing")


def test_a_missing_shard_without_index(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    (folder / INDEX).unlink()
    (folder / SECOND).unlink()
    refused(folder, f"{SECOND} is missing")


def test_a_tensor_in_two_shards(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    extra = {"model.final_norm.weight": np.zeros(32, np.float32)}
    (folder / INDEX).unlink()
    write_safetensors(folder / "more.safetensors", extra)
    refused(folder, "tensor 'model.final_norm.weight' is in two files")


@pytest.mark.parametrize("action", ["misplaced", "unlisted", "promised", "elsewhere", "stray"])
def test_an_index_that_disagrees(action: str, tmp_path: Path):
    folder = sharded(tmp_path / "model")
    name = "model.final_norm.weight"
    here = json.loads((folder / INDEX).read_text())["weight_map"][name]
    other = "model-00001-of-00003.safetensors" if "00001" not in here else SECOND
    if action == "misplaced":
        edit_index(folder, lambda index: index.update({name: other}))
        refused(folder, rf"places tensor '{name}' in {other}, but it is in {here}")
    elif action == "unlisted":
        edit_index(folder, lambda index: index.pop(name))
        refused(folder, rf"{here}: tensor '{name}' is not in {INDEX}")
    elif action == "promised":
        edit_index(folder, lambda index: index.update({"model.extra": here}))
        refused(folder, rf"{INDEX} places tensor 'model.extra' in {here}, which lacks it")
    elif action == "elsewhere":
        edit_index(folder, lambda index: index.update({name: "../outside.safetensors"}))
        refused(folder, "leads out of the folder")
    else:
        write_safetensors(folder / "model-00004-of-00004.safetensors", {})
        refused(folder, r"model-00004-of-00004.safetensors is not in the index")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": {}}'])
def test_an_index_that_is_none(content: str, tmp_path: Path):
    folder = sharded(tmp_path / "model")
    (folder / INDEX).write_text(content)
    refused(folder, INDEX)


@pytest.mark.parametrize("name", [SECOND, INDEX, "config.json", "tokenizer.json"])
def test_a_link_out_of_the_folder(name: str, tmp_path_factory: pytest.TempPathFactory):
    folder = sharded(tmp_path_factory.mktemp("a") / "model")
    outside = tmp_path_factory.mktemp("outside") / name
    outside.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    refused(folder, rf"{name} leads out of the folder, to {outside}")


def test_a_link_inside_the_folder_is_fine(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    os.rename(folder / SECOND, folder / "blob")
    (folder / SECOND).symlink_to("blob")
    open_checkpoint(folder)


@pytest.mark.parametrize("missing", [1, 10_000])
def test_a_truncated_file(missing: int, tmp_path: Path):
    folder = sharded(tmp_path / "model")
    size = (folder / SECOND).stat().st_size
    os.truncate(folder / SECOND, size - missing)
    refused(folder, rf"{SECOND}: tensor '.*': its bytes end at .* but the file has")


def test_a_header_that_lies_names_file_and_tensor(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    content = (folder / SECOND).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = next(iter(header))
    header[name]["data_offsets"][1] += 1 << 40
    text = json.dumps(header).encode()
    (folder / SECOND).write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    refused(folder, rf"{SECOND}: tensor '{name}'")


def test_pickles_are_never_loaded(tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(new_keys()))
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    refused(folder, "holds no safetensors file; pytorch_model.bin is a pickle")


def test_no_code_here_can_unpickle():
    folder = Path(__file__).parents[2] / "zaya_jax" / "checkpoint"
    for path in folder.glob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load", "np.load", "allow_pickle", "from pickle"):
            assert word not in text, path


def test_a_folder_without_config(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    (folder / "config.json").unlink()
    refused(folder, r"config\.json is missing")


@pytest.mark.parametrize("kind", ["absent", "empty", "file"])
def test_no_checkpoint_at_all(kind: str, tmp_path: Path):
    path = tmp_path / "model"
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("")
    with pytest.raises(CheckpointError, match=str(path)):
        open_checkpoint(path)
