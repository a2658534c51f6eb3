"""Every operation names what does not fit, in either form, before it computes anything."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from kernels_pallas.attention import causal_attention
from kernels_pallas.attention_decode import attention_decode
from kernels_pallas.backend import KernelError
from kernels_pallas.cca import CCAWeights, cca_mix
from kernels_pallas.cca_chunk import CCAState, cca_mix_chunk
from kernels_pallas.cross_entropy import linear_cross_entropy
from kernels_pallas.expert_mlp import expert_mlp
from kernels_pallas.flash_attention import flash_attention
from kernels_pallas.head_statistics import token_log_probabilities

from .compare import interpreted

SHAPES = {
    "query": (2, 3, 4, 16),
    "key": (2, 5, 2, 16),
    "value": (2, 5, 2, 16),
    "query_key": (1, 3, 24),
    "value_current": (1, 3, 4),
    "value_delayed": (1, 3, 4),
    "cos": (1, 3, 2),
    "sin": (1, 3, 2),
    "hidden": (2, 8),
    "weight": (5, 8),
    "x": (2, 8),
    "gate": (2,),
    "gate_up": (3, 8, 8),
    "down": (3, 8, 4),
    "token_weights": (2,),
}
IDS = {
    "lengths": (2,),
    "targets": (2,),
    "class_index": (2,),
    "segment_ids": (2, 3),
    "key_segment_ids": (2, 5),
}
ARGUMENTS = {
    causal_attention: "query key value",
    flash_attention: "query key value",
    attention_decode: "query key value lengths",
    token_log_probabilities: "hidden weight targets",
    linear_cross_entropy: "hidden weight targets token_weights",
    expert_mlp: "x class_index gate gate_up down",
    cca_mix: "query_key value_current value_delayed cos sin",
    cca_mix_chunk: "query_key value_current value_delayed cos sin",
}
FIXED: dict[Any, dict[str, Any]] = {
    token_log_probabilities: {"bias": None},
    linear_cross_entropy: {"bias": None},
    expert_mlp: {"dispatch": "grouped"},
    cca_mix: {},
}


def call(function: Callable[..., Any], **changes: Any) -> Callable[..., Any]:
    """The operation on arguments that fit, some replaced by others or by zeros of a shape."""
    arguments: dict[str, Any] = dict(FIXED.get(function, {}))
    names = [*ARGUMENTS[function].split(), *(n for n in changes if n in IDS)]
    for name in names:
        dtype = jnp.int32 if name in IDS else jnp.float32
        arguments[name] = jnp.zeros((SHAPES | IDS)[name], dtype)
    if function in (cca_mix, cca_mix_chunk):
        shapes = ((24, 2), (24,), (24, 8, 2), (24,), (1,))
        arguments["weights"] = CCAWeights(*(jnp.zeros(shape) for shape in shapes), None)
    if function is cca_mix_chunk:
        arguments["state"] = CCAState(jnp.zeros((1, 2, 24)), jnp.zeros((1, 4)))
    for name, change in changes.items():
        dtype = jnp.int32 if name in (*IDS, "query_offset") else jnp.float32
        arguments[name] = jnp.zeros(change, dtype) if isinstance(change, tuple) else change
    bare = getattr(function, "__wrapped__", function)  # without the annotation checks of tests
    return functools.partial(bare, **arguments)


def refusal(run: Callable[..., Any], implementation: str) -> str:
    """What the operation says, traced only: nothing may be computed before it is refused."""
    with pytest.raises(KernelError) as refused:
        interpreted(lambda: jax.eval_shape(functools.partial(run, implementation=implementation)))
    return str(refused.value)


@pytest.mark.parametrize("function", ARGUMENTS)
def test_arguments_that_fit_are_taken(function: Callable[..., Any]) -> None:
    jax.eval_shape(functools.partial(call(function), implementation="xla"))


ATTENTIONS = (causal_attention, flash_attention, attention_decode)
MISFITS = [
    *((f, {"query": (2, 3, 3, 16)}, "3 query heads are not a multiple of 2") for f in ATTENTIONS),
    *(
        (f, {"key": (2, 5, 0, 16), "value": (2, 5, 0, 16)}, "kv_heads must be at least 1")
        for f in ATTENTIONS
    ),
    *(
        (f, {"value": (2, 4, 2, 16)}, "value is (2, 4, 2, 16), must be (2, 5, 2")
        for f in ATTENTIONS
    ),
    *((f, {"value": (2, 5, 2, 8)}, "value is (2, 5, 2, 8), must be") for f in ATTENTIONS),
    *((f, {"query": (1, 3, 4, 16)}, "key is (2, 5, 2, 16), must be (1, 5") for f in ATTENTIONS),
    *((f, {"query": (2, 6, 4, 16)}, "6 queries are more than the 5 keys") for f in ATTENTIONS),
    *((f, {"query": (3, 4, 16)}, "query is (3, 4, 16), must be [batch, ") for f in ATTENTIONS),
    *((f, {"window": jnp.ones(2, jnp.int32)}, "window is (2,), must be ()") for f in ATTENTIONS),
    (flash_attention, {"query_offset": (3,)}, "query_offset is (3,), must be (2,)"),
    (flash_attention, {"segment_ids": (2, 3)}, "segment_ids is (2, 3), must be (2, 5)"),
    (causal_attention, {"query_offset": (2,)}, "query_offset is (2,), must be ()"),
    (causal_attention, {"segment_ids": (2, 4)}, "segment_ids is (2, 4), must be (2, 3)"),
    (causal_attention, {"key_segment_ids": (2, 5)}, "key_segment_ids are given, segment_ids not"),
    (cca_mix, {"value_current": (1, 3, 5)}, "value_current is (1, 3, 5), must be (1, 3, 4)"),
    (cca_mix, {"value_delayed": (1, 2, 4)}, "value_delayed is (1, 2, 4), must be (1, 3, 4)"),
    (cca_mix, {"query_key": (3, 24)}, "query_key is (3, 24), must be [batch, seq, channels]"),
    (cca_mix_chunk, {"value_current": (1, 3, 5)}, "value_current is (1, 3, 5), must be"),
    (linear_cross_entropy, {"weight": (8,)}, "weight is (8,), must be [vocab, hidden]"),
    (linear_cross_entropy, {"weight": (5, 7)}, "weight is (5, 7), must be (5, 8)"),
    (linear_cross_entropy, {"token_weights": (3,)}, "token_weights is (3,), must be (2,)"),
    (token_log_probabilities, {"weight": (8,)}, "weight is (8,), must be [vocab, hidden]"),
    (expert_mlp, {"gate_up": (3, 7, 8)}, "gate_up is (3, 7, 8), must be (3, 8, 8)"),
]


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
@pytest.mark.parametrize(("function", "changes", "message"), MISFITS)
def test_shapes_are_refused_in_either_form(
    function: Callable[..., Any], changes: dict[str, Any], message: str, implementation: str
) -> None:
    said = refusal(call(function, **changes), implementation)
    assert said.startswith(f"{function.__name__}: ")
    assert message in said
    assert "use implementation" not in said  # the other form would not take it either


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
@pytest.mark.parametrize(
    ("function", "changes"),
    [
        *((f, {"window": 2.0}) for f in ATTENTIONS),
        (attention_decode, {"lengths": jnp.ones(2)}),
        (flash_attention, {"query_offset": 1.0}),
        (flash_attention, {"segment_ids": jnp.ones((2, 5))}),
        (causal_attention, {"segment_ids": jnp.ones((2, 3)), "key_segment_ids": (2, 5)}),
        (cca_mix, {"segment_ids": jnp.ones((1, 3))}),
        (cca_mix_chunk, {"segment_ids": jnp.ones((1, 3))}),
        (token_log_probabilities, {"targets": jnp.ones(2)}),
        (linear_cross_entropy, {"targets": jnp.ones(2)}),
        (expert_mlp, {"class_index": jnp.ones(2)}),
    ],
)
def test_floats_are_no_indices(
    function: Callable[..., Any], changes: dict[str, Any], implementation: str
) -> None:
    said = refusal(call(function, **changes), implementation)
    assert (
        said == f"{function.__name__}: {next(iter(changes))} has dtype float32, must be an integer"
    )


@pytest.mark.parametrize("dispatch", ["dense", "grouped"])
@pytest.mark.parametrize("tokens", [0, 2])
def test_experts_refuse_forms_like_every_operation(dispatch: str, tokens: int) -> None:
    arrays = {"x": (tokens, 8), "gate": (tokens,), "class_index": (tokens,)}
    run = call(expert_mlp, dispatch=dispatch, **arrays)
    for form in ("Pallas", None):
        with pytest.raises(KernelError, match=f"expert_mlp: implementation = {form!r}: must be"):
            run(implementation=form)
    with pytest.raises(KernelError, match=r"expert_mlp: .*use implementation='xla'"):
        run(implementation="pallas")
    with pytest.raises(KernelError, match="expert_mlp: dispatch = 'sparse'"):
        call(expert_mlp, dispatch="sparse", **arrays)()


def test_dense_experts_have_no_kernel_to_run() -> None:
    said = refusal(call(expert_mlp, dispatch="dense"), "pallas")
    assert "dispatch='dense' has no kernel, 'grouped' has; use implementation='xla'" in said
    interpreted(lambda: jax.eval_shape(call(expert_mlp, dispatch="dense")))  # "auto" takes it
