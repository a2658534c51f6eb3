"""Conversion keeps every byte, in every direction, and says what it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.checkpoint.hub_folders import (
    BFLOAT16,
    SLIDING,
    TINY,
    assert_same_bytes,
    new_keys,
    random_tensors,
    read_folder,
    v1_keys,
    v2_keys,
    write_folder,
)
from zaya_jax.checkpoint.convert import convert, parse_size
from zaya_jax.checkpoint.layouts import LAYOUTS, variables_from_tensors
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.checkpoint.manifest import find_damage
from zaya_jax.checkpoint.open import open_checkpoint
from zaya_jax.config import ModelConfig

BIASES = TINY.replace(attention_bias=True, head_bias=True, tie_embeddings=False)
GENERATIONS: dict[str, tuple[str, dict[str, Any], ModelConfig]] = {
    "new": ("transformers", new_keys(), TINY),
    "new, sliding": ("transformers", new_keys(SLIDING), SLIDING),
    "new, one layer": (
        "transformers",
        new_keys(TINY.replace(num_layers=1)),
        TINY.replace(num_layers=1),
    ),
    "new, biases and head": (
        "transformers",
        new_keys(BIASES, attention_bias=True, lm_head_bias=True, tie_word_embeddings=False),
        BIASES,
    ),
    "v2": ("zyphra", v2_keys(), TINY),
    "v2, sliding": ("zyphra", v2_keys(SLIDING), SLIDING),
    "v1": ("zyphra", v1_keys(), TINY),
}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and chunks so small that every stack is cut, also within a tensor."""
    monkeypatch.setattr("zaya_jax.checkpoint.orbax_writer.BLOCK_BYTES", 3000)
    monkeypatch.setattr("zaya_jax.checkpoint.copying.BLOCK_BYTES", 2000)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, BFLOAT16) for name in GENERATIONS), ("v2", np.float32)],
)
def test_there_and_back_is_the_same_bytes(name: str, dtype: Any, tmp_path: Path):
    layout, keys, config = GENERATIONS[name]
    tensors = random_tensors(layout, config, dtype)
    source = write_folder(tmp_path / "source", keys, tensors, shards=3)
    other = {"transformers": "zyphra", "zyphra": "transformers"}[layout]

    convert(source, tmp_path / "orbax")
    convert(tmp_path / "orbax", tmp_path / "back", layout=layout)
    assert_same_bytes(read_folder(tmp_path / "back"), tensors)

    convert(source, tmp_path / "other", layout=other, max_shard_bytes=30_000)
    assert_same_bytes(read_folder(tmp_path / "other"), random_tensors(other, config, dtype))
    convert(tmp_path / "other", tmp_path / "again", layout=layout)
    assert_same_bytes(read_folder(tmp_path / "again"), tensors)

    for folder in ("orbax", "other"):
        loaded, variables = load_checkpoint(tmp_path / folder)
        assert loaded.replace(activation_dtype="float32") == config
        expected = variables_from_tensors(LAYOUTS[layout].rules(config), config, tensors)
        jax.tree.map(np.testing.assert_array_equal, variables, expected)
        assert variables["balancing"]["biases"].dtype == np.float32


@pytest.mark.usefixtures("small_blocks")
def test_plain_orbax_reads_a_converted_checkpoint(tmp_path: Path):
    tensors = random_tensors("transformers", TINY, BFLOAT16)
    source = write_folder(tmp_path / "source", new_keys(), tensors)
    convert(source, tmp_path / "orbax")
    expected = variables_from_tensors(LAYOUTS["transformers"].rules(TINY), TINY, tensors)
    expected["balancing"]["biases"] = expected["balancing"]["biases"].astype(np.float32)
    item = tmp_path / "orbax" / "variables"
    with ocp.StandardCheckpointer() as reader:
        for restored in (
            reader.restore(item),
            reader.restore(item, jax.tree.map(ocp.utils.to_shape_dtype_struct, expected)),
        ):
            jax.tree.map(np.testing.assert_array_equal, restored, expected)
            assert jax.tree.map(lambda x: x.dtype, restored) == jax.tree.map(
                lambda x: x.dtype, expected
            )
        metadata = reader.metadata(item)
        assert metadata is not None
    assert find_damage(tmp_path / "orbax") is None


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_files_come_in_any_number_with_or_without_index(
    shards: int, with_index: bool, tmp_path: Path
):
    tensors = random_tensors("zyphra", TINY)
    source = write_folder(
        tmp_path / "source", v2_keys(), tensors, shards=shards, with_index=with_index
    )
    convert(source, tmp_path / "back", layout="zyphra")
    assert_same_bytes(read_folder(tmp_path / "back"), tensors)


def test_transitional_names_are_read(tmp_path: Path):
    tensors = random_tensors("transformers", TINY)
    renamed = {
        name.replace("router_mlp.norm.", "router_mlp.rmsnorm_eda."): tensor
        for name, tensor in tensors.items()
    }
    assert set(renamed) != set(tensors)
    convert(write_folder(tmp_path / "source", new_keys(), renamed), tmp_path / "orbax")
    convert(tmp_path / "orbax", tmp_path / "back")
    assert_same_bytes(read_folder(tmp_path / "back"), tensors)


def test_shards_keep_below_the_limit_and_the_index_says_where(tmp_path: Path):
    tensors = random_tensors("transformers", TINY)
    source = write_folder(tmp_path / "source", new_keys(), tensors)
    convert(source, tmp_path / "sharded", layout="transformers", max_shard_bytes=40_000)
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    for file in {*index["weight_map"].values()}:
        inside = [tensors[n] for n, f in index["weight_map"].items() if f == file]
        assert len(inside) == 1 or sum(t.nbytes for t in inside) <= 40_000
    assert set(index["weight_map"]) == set(tensors)


KEPT = ("mlp.gate.", "conv_qk", "norm", "_scale", "_bias", ".temp", ".bias")


@pytest.mark.parametrize("target", ["float32", "bfloat16"])
@pytest.mark.parametrize("source", ["float32", "bfloat16"])
@pytest.mark.parametrize("through", ["orbax", "directly"])
def test_only_matrices_are_narrowed(source: str, target: str, through: str, tmp_path: Path):
    stored = {"float32": np.dtype(np.float32), "bfloat16": BFLOAT16}
    tensors = random_tensors("transformers", TINY, stored[source])
    folder = write_folder(tmp_path / "source", new_keys(), tensors)
    if through == "orbax":
        convert(folder, tmp_path / "orbax", dtype=target)
        folder = tmp_path / "orbax"
        assert open_checkpoint(folder).leaves["params", "embedding"].dtype == target
    convert(folder, tmp_path / "done", layout="transformers", dtype=target)
    assert json.loads((tmp_path / "done" / "config.json").read_text())["dtype"] == target
    for name, tensor in read_folder(tmp_path / "done").items():
        if name.endswith("balancing_biases"):
            assert tensor.dtype == np.float32
        elif any(part in name for part in KEPT):
            wider = "float32" if "float32" in (source, target) else "bfloat16"
            assert tensor.dtype == wider, name
        else:
            assert tensor.dtype == target, name
        expected = tensors[name].astype(tensor.dtype)
        np.testing.assert_array_equal(tensor, expected, err_msg=name)


def test_balancing_biases_stay_as_released_unless_a_dtype_is_asked_for(tmp_path: Path):
    """Their bfloat16 in a release becomes float32 here, and bfloat16 again on the way out."""
    tensors = random_tensors("transformers", TINY, BFLOAT16)
    source = write_folder(tmp_path / "source", new_keys(), tensors)
    convert(source, tmp_path / "orbax")
    assert load_checkpoint(tmp_path / "orbax")[1]["balancing"]["biases"].dtype == np.float32
    convert(tmp_path / "orbax", tmp_path / "copy", layout="orbax")
    convert(tmp_path / "copy", tmp_path / "back")
    assert_same_bytes(read_folder(tmp_path / "back"), tensors)


COMPANIONS = {
    "tokenizer.json": b'{"tokens": 1}',
    "tokenizer_config.json": b"{}",
    "special_tokens_map.json": b"{ }",
    "chat_template.jinja": b"{{ messages }}",
    "generation_config.json": b'{"top_p": 0.9}',
}


def test_tokenizer_and_generation_settings_travel_along(tmp_path: Path):
    source = write_folder(tmp_path / "source", v2_keys(), random_tensors("zyphra", TINY))
    for name, content in COMPANIONS.items():
        (source / name).write_bytes(content)
    (source / "training_args.bin").write_bytes(b"\x80")
    convert(source, tmp_path / "orbax")
    done = convert(tmp_path / "orbax", tmp_path / "back")
    assert done.companions == sorted(COMPANIONS)
    for name, content in COMPANIONS.items():
        assert (tmp_path / "back" / name).read_bytes() == content
    keys = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (keys["pad_token_id"], keys["bos_token_id"], keys["eos_token_id"]) == (0, 2, 6)
    assert not list((tmp_path / "back").glob("*.bin"))
    assert find_damage(tmp_path / "orbax") is None


def test_a_damaged_checkpoint_is_refused(tmp_path: Path):
    source = write_folder(tmp_path / "source", new_keys(), random_tensors("transformers", TINY))
    convert(source, tmp_path / "orbax")
    victim = max((tmp_path / "orbax" / "variables").rglob("*.*"), key=lambda p: p.stat().st_size)
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"is damaged: .*has changed"):
        convert(tmp_path / "orbax", tmp_path / "back")
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(tmp_path / "orbax")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5_000_000_000), ("500MB", 500_000_000), ("7", 7), ("1.5kb", 1_500)]
)
def test_sizes_are_written_as_usual(text: str, size: int):
    assert parse_size(text) == size


GEOMETRIES = st.builds(
    lambda layers, kv, group, head, experts, width, hidden, taps, bias, tied: ModelConfig(
        vocab_size=11,
        hidden_size=hidden,
        num_layers=layers,
        num_query_heads=kv * group,
        num_kv_heads=kv,
        head_dim=4 * head,
        num_experts=experts,
        expert_intermediate_size=width,
        router_hidden_size=width + 1,
        max_position_embeddings=8,
        depthwise_conv_width=taps[0],
        grouped_conv_width=taps[1],
        attention_bias=bias,
        tie_embeddings=tied,
        head_bias=bias and not tied,
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 11),
    st.integers(1, 3),
    st.integers(1, 4),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.booleans(),
    st.booleans(),
)


@hypothesis.settings(deadline=None, max_examples=6)
@hypothesis.given(
    config=GEOMETRIES,
    dtype=st.sampled_from([np.dtype(np.float32), BFLOAT16]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    block=st.integers(1, 300),
)
def test_any_geometry_goes_there_and_back(
    config: ModelConfig,
    dtype: Any,
    layout: str,
    block: int,
    tmp_path_factory: pytest.TempPathFactory,
):
    folder = tmp_path_factory.mktemp("geometry")
    make_keys = {"transformers": new_keys, "zyphra": v2_keys}[layout]
    keys = make_keys(
        config,
        attention_bias=config.attention_bias,
        lm_head_bias=config.head_bias,
        tie_word_embeddings=config.tie_embeddings,
        cca_time0=config.depthwise_conv_width,
        cca_time1=config.grouped_conv_width,
    )
    tensors = random_tensors(layout, config, dtype)
    source = write_folder(folder / "source", keys, tensors, shards=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zaya_jax.checkpoint.orbax_writer.BLOCK_BYTES", block)
        patch.setattr("zaya_jax.checkpoint.copying.BLOCK_BYTES", 2 * block)
        convert(source, folder / "orbax")
        convert(folder / "orbax", folder / "back", layout=layout, max_shard_bytes=20 * block)
    assert_same_bytes(read_folder(folder / "back"), tensors)
