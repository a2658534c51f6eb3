"""The operations that `benchmarks/gpu_kernels.py` measures, with their peers and their data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from kernels_pallas.attention_decode import attention_decode
from kernels_pallas.cca import CCAWeights, apply_rope, cca_mix
from kernels_pallas.cross_entropy import linear_cross_entropy
from kernels_pallas.expert_mlp import expert_mlp
from kernels_pallas.flash_attention import flash_attention
from kernels_pallas.newton_schulz import newton_schulz
from kernels_pallas.norm import scaled_residual_norm

ON_GPU = jax.default_backend() != "cpu"
ON_NVIDIA = ON_GPU and "nvidia" in jax.devices()[0].device_kind.lower()
OURS = ("pallas", "xla") if ON_GPU else ("xla",)
DTYPE = jnp.bfloat16 if ON_GPU else jnp.float32
Draw = Callable[[jax.Array], tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation in several forms that agree.

    Attributes:
      name: as printed.
      draw: fresh arguments from a random key.
      forms: functions of those arguments by the form's name.
      least_bytes: of arguments and results, each once; 0 where bytes are not what bounds it.
    """

    name: str
    draw: Draw
    forms: dict[str, Callable[..., Any]]
    least_bytes: int = 0


def normal(key: jax.Array, *shapes: tuple[int, ...], dtype: Any = None) -> tuple[jax.Array, ...]:
    keys = jax.random.split(key, len(shapes))
    pairs = zip(keys, shapes, strict=True)
    return tuple(jax.random.normal(k, shape, dtype or DTYPE) for k, shape in pairs)


def gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, and gradients to all its arguments for cotangents of ones."""

    def run(*arguments: Any) -> Any:
        outputs, pullback = jax.vjp(function, *arguments)
        return outputs, pullback(jax.tree.map(jnp.ones_like, outputs))

    return run


def both_ways(name: str, draw: Draw, forms: dict[str, Callable[..., Any]]) -> list[Operation]:
    """The operation, and the operation with its gradients."""
    backward = {form: gradients(function) for form, function in forms.items()}
    return [Operation(name, draw, forms), Operation(f"{name} gradient", draw, backward)]


def attention_of(form: str) -> Callable[..., Any]:
    """Causal attention by one of our forms, or by cuDNN."""
    if form == "cudnn":
        return functools.partial(
            jax.nn.dot_product_attention, is_causal=True, implementation="cudnn"
        )
    return lambda q, k, v: flash_attention(q, k, v, implementation=form)[0]


def attention() -> Iterator[Operation]:
    for seq in (4096, 16384, 65536) if ON_GPU else (256,):
        shapes = [(1, seq, heads, 128) for heads in (8, 2, 2)]
        # The plain form holds all scores: not at the longest sequence.
        forms = [form for form in OURS if form == "pallas" or seq <= 16384]
        forms += ["cudnn"] if ON_NVIDIA else []
        yield from both_ways(
            f"attention {seq}",
            lambda key, shapes=shapes: normal(key, *shapes),
            {form: attention_of(form) for form in forms},
        )


def experts() -> Iterator[Operation]:
    tokens, hidden, width = (16384, 2048, 2048) if ON_GPU else (256, 64, 64)

    def draw(key: jax.Array, share: Any) -> tuple[Any, ...]:
        keys = jax.random.split(key, 5)
        (x,) = normal(keys[0], (tokens, hidden))
        (gate_up,) = normal(keys[1], (16, 2 * width, hidden))
        (down,) = normal(keys[2], (16, hidden, width))
        gate = jax.random.uniform(keys[3], (tokens,))
        if share is None:
            classes = jax.random.permutation(keys[4], jnp.arange(tokens, dtype=jnp.int32) % 16)
        else:
            classes = jax.random.choice(keys[4], 16, (tokens,), p=share).astype(jnp.int32)
        return classes, x, gate, gate_up * hidden**-0.5, down * width**-0.5

    def ours(form: str, with_gradients: bool) -> Callable[..., Any]:
        def run(classes: Any, *rest: Any) -> Any:
            options: dict[str, Any] = {"dispatch": "grouped", "implementation": form}
            function = functools.partial(
                lambda x, gate, gate_up, down: expert_mlp(
                    x, classes, gate, gate_up, down, **options
                )
            )
            return gradients(function)(*rest) if with_gradients else function(*rest)

        return run

    heavy = jnp.where(jnp.arange(16) < 4, 4.0, 1.0)
    for load, share in (("balanced", None), ("4:1", heavy / heavy.sum())):
        for name, backward in ((f"experts {load}", False), (f"experts {load} gradient", True)):
            forms = {form: ours(form, backward) for form in OURS}
            yield Operation(name, functools.partial(draw, share=share), forms)
    yield Operation(
        "dense product of the experts' FLOPs",
        lambda key: normal(key, (tokens, hidden), (2 * width, hidden), (hidden, width)),
        {"xla": lambda x, a, b: (x @ a.T)[:, :width] @ b.T},
    )


def cca_weights(key: jax.Array, head_dim: int) -> CCAWeights:
    channels = 10 * head_dim
    shapes = ((channels, 2), (channels,), (channels, head_dim, 2), (channels,), (2,))
    return CCAWeights(*normal(key, *shapes, dtype=jnp.float32), None)


def streams() -> Iterator[Operation]:
    """cca, norm, and a plain copy for the bandwidth there is."""
    seq, head_dim, hidden = (16384, 128, 2048) if ON_GPU else (128, 16, 64)
    channels, size = 10 * head_dim, jnp.dtype(DTYPE).itemsize

    def draw_cca(key: jax.Array) -> tuple[Any, ...]:
        keys = jax.random.split(key, 3)
        half = (1, seq, head_dim)
        angles = normal(keys[1], (1, seq, head_dim // 4), dtype=jnp.float32)[0]
        u, a, b = normal(keys[0], (1, seq, channels), half, half)
        return u, a, b, cca_weights(keys[2], head_dim), jnp.cos(angles), jnp.sin(angles)

    def mix(u: Any, a: Any, b: Any, weights: Any, cos: Any, sin: Any, form: str) -> Any:
        return cca_mix(u, a, b, weights, cos=cos, sin=sin, implementation=form)

    forms = {form: functools.partial(mix, form=form) for form in OURS}
    # Read: u, both value streams, cos and sin. Written: as much as u and the values, rotated.
    least = seq * (2 * (channels + 2 * head_dim) * size + head_dim // 4 * 2 * 4)
    forward, backward = both_ways("cca", draw_cca, forms)
    yield from (dataclasses.replace(forward, least_bytes=least), backward)

    names = ("hidden_bias", "hidden_scale", "residual_bias", "residual_scale", "norm_weight")

    def draw_norm(key: jax.Array) -> tuple[Any, ...]:
        keys = jax.random.split(key)
        vectors = normal(keys[1], (seq, hidden), *[(hidden,)] * 5, dtype=jnp.float32)
        return (*normal(keys[0], (seq, hidden)), *vectors)

    def norm(h: Any, r: Any, *vectors: Any, form: str) -> Any:
        options: dict[str, Any] = {"norm_dtype": DTYPE, "implementation": form}
        named = dict(zip(names, vectors, strict=True))
        return scaled_residual_norm(h, r, epsilon=1e-5, **named, **options)

    forms = {form: functools.partial(norm, form=form) for form in OURS}
    forward, backward = both_ways("norm", draw_norm, forms)
    yield from (dataclasses.replace(forward, least_bytes=seq * hidden * 2 * (size + 4)), backward)
    elements = 2**28 if ON_GPU else 2**16
    yield Operation(
        "copy",
        lambda key: normal(key, (elements,), dtype=jnp.float32),
        {"xla": lambda a: a + 1},
        least_bytes=8 * elements,
    )


def decode() -> Iterator[Operation]:
    batch, keys = (64, 32768) if ON_GPU else (4, 256)

    def draw(key: jax.Array) -> tuple[Any, ...]:
        cache = (batch, keys, 2, 128)
        lengths = jnp.full((batch,), keys, jnp.int32)
        return (*normal(key, (batch, 1, 8, 128), cache, cache), lengths)

    forms = {form: functools.partial(attention_decode, implementation=form) for form in OURS}
    least = 2 * batch * keys * 2 * 128 * jnp.dtype(DTYPE).itemsize
    yield Operation("attention decode", draw, forms, least)


def head_sizes() -> tuple[int, int, int]:
    """Tokens, width and vocabulary."""
    return (4096, 2048, 262_272) if ON_GPU else (64, 64, 512)


def head() -> Iterator[Operation]:
    tokens, hidden, vocab = head_sizes()

    def draw(key: jax.Array) -> tuple[Any, ...]:
        keys = jax.random.split(key)
        states, weight = normal(keys[0], (tokens, hidden), (vocab, hidden))
        return jax.random.randint(keys[1], (tokens,), 0, vocab), states, weight * hidden**-0.5

    def loss(targets: Any, states: Any, weight: Any, form: str, backward: bool) -> Any:
        def function(states: Any, weight: Any) -> Any:
            ones = jnp.ones((tokens,), jnp.float32)
            options: dict[str, Any] = {"implementation": form}
            return linear_cross_entropy(states, weight, None, targets, ones, **options).loss_sum

        return (gradients(function) if backward else function)(states, weight)

    for name, backward in (("cross entropy", False), ("cross entropy gradient", True)):
        forms = {form: functools.partial(loss, form=form, backward=backward) for form in OURS}
        yield Operation(name, draw, forms)
    yield Operation("head product", lambda key: draw(key)[1:], {"xla": lambda a, b: a @ b.T})


def newton_schulz_steps() -> Iterator[Operation]:
    shape = (4, 2048, 4096) if ON_GPU else (2, 32, 48)
    forms = {form: functools.partial(newton_schulz, implementation=form) for form in OURS}
    yield Operation("newton schulz", lambda key: normal(key, shape), forms)


def blocks() -> Iterator[Operation]:
    """From the block's input to its output: CCA as in ZAYA1-8B, and MHA of the same width."""
    seq, head_dim, hidden = (16384, 128, 2048) if ON_GPU else (128, 16, 256)
    heads, query, kv = hidden // head_dim, 8 * head_dim, 2 * head_dim

    def draw_cca(key: jax.Array) -> tuple[Any, ...]:
        keys = jax.random.split(key, 3)
        matrices = normal(keys[0], (hidden, query + 2 * kv), (query, hidden))
        (x,) = normal(keys[1], (1, seq, hidden))
        return x, *(m * hidden**-0.5 for m in matrices), cca_weights(keys[2], head_dim)

    def angles() -> tuple[jax.Array, jax.Array]:
        place = jnp.arange(seq, dtype=jnp.float32)[None, :, None]
        step = 1e4 ** -jnp.linspace(0.0, 1.0, head_dim // 4)[None, None, :]
        return jnp.cos(place * step), jnp.sin(place * step)

    def cca(x: Any, into: Any, out: Any, weights: Any, form: str) -> Any:
        u, current, delayed = jnp.split(x @ into, (query + kv, query + kv + kv // 2), axis=-1)
        cos, sin = angles()
        mixing = "xla" if form == "xla" else "pallas"
        q, k, v = cca_mix(u, current, delayed, weights, cos=cos, sin=sin, implementation=mixing)
        return attention_of(form)(q, k, v).reshape(1, seq, query) @ out

    def draw_mha(key: jax.Array) -> tuple[Any, ...]:
        keys = jax.random.split(key)
        matrices = normal(keys[0], (hidden, 3 * hidden), (hidden, hidden))
        return *normal(keys[1], (1, seq, hidden)), *(m * hidden**-0.5 for m in matrices)

    def mha(x: Any, into: Any, out: Any, form: str) -> Any:
        q, k, v = ((x @ into).reshape(1, seq, 3, heads, head_dim)[:, :, i] for i in range(3))
        q, k = (apply_rope(a, *angles()).astype(a.dtype) for a in (q, k))
        return attention_of(form)(q, k, v).reshape(1, seq, hidden) @ out

    forms = (*OURS, "cudnn") if ON_NVIDIA else OURS
    for name, draw, block in (("CCA block", draw_cca, cca), ("MHA block", draw_mha, mha)):
        made = {form: functools.partial(block, form=form) for form in forms}
        yield Operation(name, draw, made)


GROUPS = (attention, experts, streams, decode, head, newton_schulz_steps, blocks)
