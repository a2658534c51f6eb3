"""Named model geometries.

``zaya1_8b`` and ``zaya1_base`` are the released models; ``nano`` and ``mini`` run on a laptop CPU.
"""

from __future__ import annotations

from collections.abc import Callable

from zaya_jax.config import ConfigError, ExpertDispatch, LayerType, ModelConfig


def zaya1_8b() -> ModelConfig:
    """ZAYA1-8B as released: 8.84B parameters, 131,072 positions (arXiv 2605.05365, Table I)."""
    return ModelConfig(
        vocab_size=262_272,
        hidden_size=2_048,
        num_layers=40,
        num_query_heads=8,
        num_kv_heads=2,
        head_dim=128,
        num_experts=16,
        expert_intermediate_size=2_048,
        router_hidden_size=256,
        max_position_embeddings=131_072,
        rope_theta=5e6,
    )


def zaya1_base() -> ModelConfig:
    """ZAYA1-base: the same tensors as ZAYA1-8B, trained to 32,768 positions (arXiv 2511.17127)."""
    return zaya1_8b().replace(max_position_embeddings=32_768, rope_theta=1e6)


def zaya1_74b_preview() -> ModelConfig:
    """ZAYA1-74B-preview as far as it is known.

    Known: hidden size 4,096, 60 layers, 24 experts, 16 query and 2 KV heads, sliding and full
    layers alternating with bases 1e4 and 5e6, a window of 4,097 keys. Assumed, by analogy with
    ZAYA1-8B: head_dim 128, router width 256, convolution widths 2 and 2, vocabulary 262,272,
    131,072 positions. The expert width of 4,096 is chosen because it brings the total to 75.9B
    parameters, the nearest multiple of 1,024 to the name. Read the checkpoint's own config
    rather than this preset when there is one.
    """
    return ModelConfig(
        vocab_size=262_272,
        hidden_size=4_096,
        num_layers=60,
        num_query_heads=16,
        num_kv_heads=2,
        head_dim=128,
        num_experts=24,
        expert_intermediate_size=4_096,
        router_hidden_size=256,
        max_position_embeddings=131_072,
        layer_pattern=(LayerType.SLIDING, LayerType.FULL),
        sliding_window=4_097,
        rope_theta=5e6,
        sliding_rope_theta=1e4,
    )


def ablation_1b8() -> ModelConfig:
    """1.8B parameters, the scale of the published router ablation (arXiv 2605.05365, Fig. 4).

    Only the total is published; the geometry keeps ZAYA1-8B's proportions.
    """
    return ModelConfig(
        vocab_size=262_272,
        hidden_size=1_024,
        num_layers=28,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=128,
        num_experts=16,
        expert_intermediate_size=1_024,
        router_hidden_size=256,
        max_position_embeddings=4_096,
    )


def mini() -> ModelConfig:
    """A hundred million parameters, 19M active: the size of the CPU benchmarks and ablations."""
    return ModelConfig(
        vocab_size=8_192,
        hidden_size=512,
        num_layers=8,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=64,
        num_experts=16,
        expert_intermediate_size=512,
        router_hidden_size=64,
        max_position_embeddings=4_096,
        activation_dtype="float32",
    )


def nano() -> ModelConfig:
    """The demo's model: learns text on two CPU cores within minutes."""
    return ModelConfig(
        vocab_size=8_192,
        hidden_size=192,
        num_layers=4,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=32,
        num_experts=8,
        expert_intermediate_size=256,
        router_hidden_size=32,
        max_position_embeddings=2_048,
        activation_dtype="float32",
    )


def oracle(config: ModelConfig) -> ModelConfig:
    """The same model computed the slow, obvious way in float32, for comparisons."""
    return config.replace(activation_dtype="float32", expert_dispatch=ExpertDispatch.DENSE)


PRESETS: dict[str, Callable[[], ModelConfig]] = {
    preset.__name__: preset
    for preset in (zaya1_8b, zaya1_base, zaya1_74b_preview, ablation_1b8, mini, nano)
}


def preset(name: str) -> ModelConfig:
    """The named geometry.

    Raises:
      ConfigError: when there is no preset of that name.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset {name!r} is unknown; the presets are: {', '.join(PRESETS)}")
    return PRESETS[name]()
