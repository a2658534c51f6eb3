"""Exported folders are what transformers, and a reader like vLLM's, expect; training goes on there.

The judge is transformers' own implementation: strict keys, the same logits, the same greedy tokens,
and one AdamW step from the same weights and batch.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.checkpoint.hub_folders import (
    BFLOAT16,
    read_folder,
    write_folder,
)
from tests.checkpoint.test_run_export import save_run
from tests.parity import reference
from tests.parity.cases import CASE_BY_NAME, ParityCase
from tests.parity.ours import _batch
from tests.parity.tensors import random_tensors
from zaya_jax.checkpoint.convert import convert
from zaya_jax.checkpoint.layouts import LAYOUTS, tensors_from_variables, variables_from_tensors
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.checkpoint.released_keys import hub_config_keys
from zaya_jax.model.transformer import Transformer
from zaya_jax.training.loss import loss_sums

pytestmark = pytest.mark.skipif(
    not reference.LIVE, reason="needs torch and transformers: the parity extra"
)

GREEDY_TOKENS = 32
PROMPTS = np.random.default_rng(0).integers(0, 96, (6, 5), dtype=np.int32)
CASES = (
    "base",
    pytest.param("sliding", marks=pytest.mark.slow),
    pytest.param("untied_head_bias", marks=pytest.mark.slow),
    pytest.param("attention_bias", marks=pytest.mark.slow),
)
LEARNING_RATE, WEIGHT_DECAY, EPSILON = 2e-4, 0.1, 1e-8


def release_tensors(case: ParityCase) -> dict[str, np.ndarray]:
    """The case's random tensors, with the skip bias that every release has."""
    tensors = random_tensors(case)
    for name, tensor in tensors.items():
        if name.endswith("balancing_biases"):
            tensor[-1] = -1.0
    return tensors


def old_release(folder: Path, case: ParityCase) -> Path:
    """The case's tensors as a folder in the zyphra layout."""
    model = case.model
    variables = variables_from_tensors(
        LAYOUTS["transformers"].rules(model), model, release_tensors(case)
    )
    tensors = dict(tensors_from_variables(LAYOUTS["zyphra"].rules(model), model, variables))
    keys = hub_config_keys(model, LAYOUTS["zyphra"], {}, "float32")
    return write_folder(folder, keys, tensors, shards=2)


@functools.cache
def exported(name: str, folder: Path) -> Path:
    """Old layout to Orbax to a folder for transformers."""
    old_release(folder / "old", CASE_BY_NAME[name])
    convert(folder / "old", folder / "orbax")
    convert(folder / "orbax", folder / "new", max_shard_bytes=300_000)
    return folder / "new"


@pytest.fixture(scope="module", params=CASES)
def case_and_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ParityCase, Path]:
    """A geometry and its exported folder."""
    folder = tmp_path_factory.mktemp(request.param)
    return CASE_BY_NAME[request.param], exported(request.param, folder)


def load_strictly(folder: Path) -> Any:
    """The folder in transformers; every key must be used and present."""
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(problem), (problem, info[problem])
    model.set_experts_implementation("eager")
    return model.eval()


def our_greedy(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Prompts with their greedy continuations, and the logits of all of it."""
    config, variables = load_checkpoint(folder)
    logits = jax.jit(lambda v, rows: Transformer(config).apply(v, rows).logits)
    count, start = PROMPTS.shape
    rows = np.zeros((count, start + GREEDY_TOKENS), np.int32)  # no token sees the ones after it
    rows[:, :start] = PROMPTS
    for position in range(start, rows.shape[1]):
        rows[:, position] = np.asarray(logits(variables, rows)[:, position - 1].argmax(-1))
    return rows, np.asarray(logits(variables, rows))


def test_same_logits_and_same_greedy_tokens(case_and_folder: tuple[ParityCase, Path]):
    import torch

    _, folder = case_and_folder
    model = load_strictly(folder)
    ours, logits = our_greedy(folder)
    with torch.no_grad():
        theirs = model.generate(
            torch.from_numpy(PROMPTS).long(),
            attention_mask=torch.ones(PROMPTS.shape, dtype=torch.long),
            max_new_tokens=GREEDY_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        expected = model(theirs).logits.numpy()
    assert theirs.shape[1] == PROMPTS.shape[1] + GREEDY_TOKENS
    np.testing.assert_array_equal(ours, theirs.numpy())
    assert len(np.unique(ours[:, PROMPTS.shape[1] :])) >= 5, "constant texts compare little"
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_what_transformers_saves_comes_back_byte_by_byte(
    case_and_folder: tuple[ParityCase, Path], tmp_path: Path
):
    case, folder = case_and_folder
    load_strictly(folder).save_pretrained(tmp_path / "theirs", max_shard_size="200KB")
    convert(tmp_path / "theirs", tmp_path / "orbax")
    convert(tmp_path / "orbax", tmp_path / "back")
    original = release_tensors(case)
    for where in ("theirs", "back"):
        found = read_folder(tmp_path / where)
        assert set(found) == set(original)
        for name, tensor in original.items():
            assert found[name].tobytes() == tensor.tobytes(), name
    assert load_checkpoint(tmp_path / "theirs")[0] == load_checkpoint(tmp_path / "back")[0]


@pytest.mark.slow
def test_a_bfloat16_folder_keeps_its_fp32_biases_in_transformers(tmp_path: Path):
    import torch

    case = CASE_BY_NAME["base"]
    old_release(tmp_path / "old", case)
    convert(tmp_path / "old", tmp_path / "new", layout="transformers", dtype="bfloat16")
    model = load_strictly(tmp_path / "new")
    assert model.dtype == torch.bfloat16
    expected = release_tensors(case)
    for index, layer in enumerate(model.model.layers):
        name = f"model.layers.{index}.mlp.gate.balancing_biases"
        assert layer.mlp.gate.balancing_biases.dtype == torch.float32
        np.testing.assert_array_equal(layer.mlp.gate.balancing_biases.numpy(), expected[name])
    theirs = model(torch.from_numpy(PROMPTS).long()).logits.detach().float().numpy()
    config, variables = load_checkpoint(tmp_path / "new", dtype="bfloat16")
    assert config.activation_dtype == "bfloat16"
    ours = jax.jit(Transformer(config).apply)(variables, PROMPTS).logits
    assert np.abs(np.asarray(ours) - theirs).max() < 0.2 * np.abs(theirs).max()


def vllm_like_expectations(keys: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes that a serving engine builds from config.json, written down by hand."""
    hidden, head = keys["hidden_size"], keys["head_dim"]
    query, kv = keys["num_attention_heads"] * head, keys["num_key_value_heads"] * head
    experts, width = keys["num_experts"], keys["moe_intermediate_size"]
    router = keys["router_hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (keys["vocab_size"], hidden),
        "model.input_hidden_states_scale": (hidden,),
        "model.input_hidden_states_bias": (hidden,),
        "model.norm.weight": (hidden,),
    }
    for layer in range(keys["num_hidden_layers"]):
        qkv, gate = "self_attn.qkv_proj.", "mlp.gate."
        inside: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            qkv + "q_proj.weight": (query, hidden),
            qkv + "k_proj.weight": (kv, hidden),
            qkv + "v_proj_current.weight": (kv // 2, hidden),
            qkv + "v_proj_delayed.weight": (kv // 2, hidden),
            qkv + "conv_qk_depthwise.weight": (query + kv, 1, keys["cca_time0"]),
            qkv + "conv_qk_depthwise.bias": (query + kv,),
            qkv + "conv_qk_grouped.weight": (query + kv, head, keys["cca_time1"]),
            qkv + "conv_qk_grouped.bias": (query + kv,),
            "self_attn.qk_norm.temp": (keys["num_key_value_heads"],),
            "self_attn.o_proj.weight": (hidden, query),
            gate + "down_proj.weight": (router, hidden),
            gate + "down_proj.bias": (router,),
            gate + "router_mlp.norm.weight": (router,),
            gate + "router_mlp.fc1.weight": (router, router),
            gate + "router_mlp.fc1.bias": (router,),
            gate + "router_mlp.fc2.weight": (router, router),
            gate + "router_mlp.fc2.bias": (router,),
            gate + "router_mlp.out_proj.weight": (experts + 1, router),
            gate + "balancing_biases": (experts + 1,),
            "mlp.experts.gate_up_proj": (experts, 2 * width, hidden),
            "mlp.experts.down_proj": (experts, hidden, width),
        }
        if layer > 0:
            inside[gate + "router_states_scale"] = (router,)
        for site in ("post_attention_residual_scale", "post_mlp_residual_scale"):
            for vector in ("hidden_states_scale", "hidden_states_bias"):
                inside[f"{site}.{vector}"] = (hidden,)
            for vector in ("residual_scale", "residual_bias"):
                inside[f"{site}.{vector}"] = (hidden,)
        shapes.update({f"model.layers.{layer}.{name}": shape for name, shape in inside.items()})
    return shapes


@pytest.mark.parametrize("name", ["base", "sliding"])
def test_a_serving_engine_finds_what_it_expects(name: str, tmp_path: Path):
    old_release(tmp_path / "old", CASE_BY_NAME[name])
    convert(tmp_path / "old", tmp_path / "new", layout="transformers", dtype="bfloat16")
    keys = json.loads((tmp_path / "new" / "config.json").read_text())
    assert keys["architectures"] == ["ZayaForCausalLM"]
    assert keys["model_type"] == "zaya"
    assert len(keys["layer_types"]) == keys["num_hidden_layers"]
    assert set(keys["layer_types"]) <= {"hybrid", "hybrid_sliding"}
    assert (name == "sliding") == ("hybrid_sliding" in keys["layer_types"])
    for kind in set(keys["layer_types"]):
        assert set(keys["rope_parameters"][kind]) == {
            "rope_type",
            "rope_theta",
            "partial_rotary_factor",
        }
    tensors = read_folder(tmp_path / "new")
    assert {n: t.shape for n, t in tensors.items()} == vllm_like_expectations(keys)
    for tensor_name, tensor in tensors.items():
        is_matrix = "_proj" in tensor_name and "mlp.gate" not in tensor_name
        is_matrix |= "embed_tokens" in tensor_name
        is_matrix &= "conv" not in tensor_name
        assert tensor.dtype == (BFLOAT16 if is_matrix else np.float32), tensor_name


def our_step(folder: Path, case: ParityCase) -> tuple[dict[str, np.ndarray], Any]:
    """One AdamW step from the folder's weights; parameters by tensor name, and the new tree."""
    config, variables = load_checkpoint(folder)
    model, batch = Transformer(config), _batch(case)

    def loss(params: Any) -> jax.Array:
        sums = loss_sums(model, params, variables["balancing"], batch)
        return sums.objective / sums.weight

    optimizer = optax.adamw(LEARNING_RATE, b1=0.9, b2=0.95, eps=EPSILON, weight_decay=WEIGHT_DECAY)

    @jax.jit
    def step(params: Any) -> Any:
        updates, _ = optimizer.update(jax.grad(loss)(params), optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    after = {"params": step(variables["params"]), "balancing": variables["balancing"]}
    rules = LAYOUTS["transformers"].rules(config)
    return dict(tensors_from_variables(rules, config, after)), after


def their_step(folder: Path, case: ParityCase) -> dict[str, np.ndarray]:
    """The same in PyTorch."""
    import torch

    model = load_strictly(folder).train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        betas=(0.9, 0.95),
        eps=EPSILON,
        weight_decay=WEIGHT_DECAY,
    )
    tokens = torch.from_numpy(case.tokens()).long()
    model(tokens, labels=tokens, use_cache=False).loss.backward()
    optimizer.step()
    return {name: p.detach().numpy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["base", pytest.param("sliding", marks=pytest.mark.slow)])
def test_training_goes_on_in_transformers_from_an_exported_run(name: str, tmp_path: Path):
    """A run's checkpoint is exported; the next step is the same there and here.

    Its skip biases are not -1, and tokens do skip: the export has to save the routing.
    """
    case = CASE_BY_NAME[name]
    variables = variables_from_tensors(
        LAYOUTS["transformers"].rules(case.model), case.model, random_tensors(case)
    )
    save_run(tmp_path / "run", variables, case.model, {})
    convert(tmp_path / "run", tmp_path / "exported")
    before = read_folder(tmp_path / "exported")
    theirs = their_step(tmp_path / "exported", case)
    ours, _ = our_step(tmp_path / "run", case)
    for tensor, expected in theirs.items():
        assert not np.array_equal(expected, before[tensor]), f"{tensor} was not trained"
        distance = np.linalg.norm(ours[tensor] - expected) / np.linalg.norm(expected)
        assert distance <= 1e-5, f"{tensor} differs by {distance:.1e} after one step"
        # Of the step itself: where a gradient is about EPSILON, its rounding decides the update.
        step = np.linalg.norm(expected - before[tensor])
        distance = np.linalg.norm(ours[tensor] - expected) / step
        assert distance <= 1e-2, f"the step of {tensor} differs by {distance:.1e}"
