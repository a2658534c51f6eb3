"""The architecture of one ZAYA model as a frozen, validated dataclass.

A ``ModelConfig`` fixes every shape of the parameter tree, how the forward pass
is computed, and (by ``zaya_jax.model_size``) the parameter and FLOP counts.
Named geometries live in ``zaya_jax.presets``.

Sources: the released configuration files (transformers ``ZayaConfig``) and
arXiv 2605.05365, Table I. Names differ from the released files where those
names mislead: ``cca_time0`` is ``depthwise_conv_width`` here.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Mapping
from typing import Any, get_type_hints

from zaya_jax.variants import (
    AttentionKind,
    BalancingRule,
    Convolutions,
    QueryKeyMean,
    ResidualKind,
    RouterKind,
    SkipClass,
    ValuePath,
)


class ConfigError(ValueError):
    """A configuration value breaks a rule. The message names field, value and rule."""


class LayerType(enum.StrEnum):
    """Which keys a layer's attention may see."""

    FULL = "full"  # every earlier token of the segment
    SLIDING = "sliding"  # the last `sliding_window` tokens, the query's own included


class OutputInit(enum.StrEnum):
    """Initial spread of the matrices that write into the residual stream."""

    DEPTH_SCALED = "depth_scaled"  # divided by sqrt(2 * num_layers)
    PLAIN = "plain"  # the same as every other matrix


class RouterInit(enum.StrEnum):
    """Initial spread of the matrices that score classes."""

    FAN_IN = "fan_in"  # 1 / sqrt(inputs): tokens differ in their choice from the first step
    PLAIN = "plain"  # the same as every other matrix: nearly equal scores in small models


class ExpertDispatch(enum.StrEnum):
    """How tokens reach their experts. The forms give the same numbers and drop no token."""

    DENSE = "dense"  # every expert on every token, then select: the oracle, E times the work
    GROUPED = "grouped"  # sort tokens by expert and multiply group by group


class Kernels(enum.StrEnum):
    """Which form of the operations of `kernels_pallas` runs. They differ in rounding only."""

    AUTO = "auto"  # the Pallas kernels where the default backend is a GPU, XLA elsewhere
    PALLAS = "pallas"  # the kernels, or an error that says why they cannot run
    XLA = "xla"  # the XLA forms, also on a GPU


class LayerLoop(enum.StrEnum):
    """How the stack of layers is compiled. Both read the same stacked parameters."""

    SCAN = "scan"  # one compiled body, looped: quick to compile
    UNROLL = "unroll"  # every layer laid out: slow to compile, sometimes quicker to run


class RematPolicy(enum.StrEnum):
    """What the backward pass keeps from a layer's forward pass."""

    NONE = "none"  # everything: fastest, most memory
    DOTS = "dots"  # results of matrix products; elementwise work is repeated
    FULL = "full"  # only the layer's inputs; the whole layer is repeated
    OFFLOAD = "offload"  # as full, and the inputs wait in host memory

    @property
    def repeats_layers(self) -> bool:
        """Whether the backward pass repeats whole layers."""
        return self in (RematPolicy.FULL, RematPolicy.OFFLOAD)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Architecture and execution choices of one model.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    # Geometry
    vocab_size: int  # rows of the embedding; may exceed the tokenizer's size
    hidden_size: int  # width of the residual stream
    num_layers: int  # each one attention block and one expert block
    num_query_heads: int  # in the compressed latent, not hidden_size / head_dim
    num_kv_heads: int  # must divide num_query_heads
    head_dim: int  # channels of one head
    num_experts: int  # real experts, the skip class not counted
    expert_intermediate_size: int  # width of one expert's SwiGLU
    router_hidden_size: int  # width of the router's state
    max_position_embeddings: int  # longest sequence accepted, in tokens
    experts_per_token: int = 1  # experts chosen for each token
    depthwise_conv_width: int = 2  # taps of the per-channel convolution on queries and keys
    grouped_conv_width: int = 2  # taps of the per-head convolution that follows

    # Position and attention pattern
    layer_pattern: tuple[LayerType, ...] = (LayerType.FULL,)  # repeated over the depth
    sliding_window: int | None = None  # keys a sliding layer sees, the query's own included
    rope_theta: float = 1e4  # RoPE base of full layers
    sliding_rope_theta: float = 1e4  # RoPE base of sliding layers
    rotary_fraction: float = 0.5  # share of each head's channels that RoPE turns

    # Details of the released models
    rms_norm_epsilon: float = 1e-5  # added to the mean square in every RMSNorm
    attention_bias: bool = False  # biases on the query, key, value and output projections
    head_bias: bool = False  # bias on the logits
    tie_embeddings: bool = True  # the LM head is the embedding, transposed

    # Variants: releases have the defaults
    attention: AttentionKind = AttentionKind.CCA
    convolutions: Convolutions = Convolutions.BOTH
    query_key_mean: QueryKeyMean = QueryKeyMean.GROUP
    value_path: ValuePath = ValuePath.DELAYED_HALF
    kv_latent_size: int | None = None  # channels that keys and values share; mla only
    query_latent_size: int | None = None  # channels between hidden and queries; None: direct; mla
    router: RouterKind = RouterKind.MLP_EDA
    skip_class: SkipClass = SkipClass.ZERO
    balancing_rule: BalancingRule = BalancingRule.ADAMW
    residual: ResidualKind = ResidualKind.SCALED

    # Initialisation, read only when training from scratch
    initializer_stddev: float = 0.02  # of the truncated normal of matrices and convolutions
    output_init: OutputInit = OutputInit.DEPTH_SCALED  # of output and expert down projections
    router_init: RouterInit = RouterInit.FAN_IN  # of the router's scoring matrices
    skip_class_bias: float = -1.0  # balancing bias of the skip class; -1: nearly out of reach

    # Execution: changes speed and rounding, never the parameter tree
    activation_dtype: str = "bfloat16"  # of activations; the fp32 set of the model is unaffected
    expert_dispatch: ExpertDispatch = ExpertDispatch.GROUPED
    kernels: Kernels = Kernels.AUTO  # of attention, CCA, norms, loss and grouped experts
    layer_loop: LayerLoop = LayerLoop.SCAN
    remat: RematPolicy = RematPolicy.NONE

    def __post_init__(self) -> None:
        for name, enum_type in _ENUM_FIELDS.items():
            object.__setattr__(self, name, _parse_enum(name, getattr(self, name), enum_type))
        pattern = self.layer_pattern
        pattern = (pattern,) if isinstance(pattern, str) else tuple(pattern)
        layer_types = tuple(_parse_enum("layer_pattern", entry, LayerType) for entry in pattern)
        object.__setattr__(self, "layer_pattern", layer_types)
        _validate(self)

    # Derived shapes

    @property
    def layer_types(self) -> tuple[LayerType, ...]:
        """The attention type of every layer: `layer_pattern` repeated over the depth."""
        return self.layer_pattern * (self.num_layers // len(self.layer_pattern))

    @property
    def query_size(self) -> int:
        """Channels of all query heads."""
        return self.num_query_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Channels of all KV heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def rotary_dim(self) -> int:
        """Channels of each head that RoPE turns."""
        return int(self.head_dim * self.rotary_fraction)

    @property
    def num_router_classes(self) -> int:
        """Experts and the skip class, which is the last class, whether or not it can be chosen."""
        return self.num_experts + 1

    def replace(self, **changes: Any) -> ModelConfig:
        """A copy with some fields changed, validated again."""
        _check_known_fields(changes)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only (enums as strings), in the order of the fields."""
        plain: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                value = tuple(str(entry) for entry in value)
            plain[field.name] = str(value) if isinstance(value, enum.Enum) else value
        return plain

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`.

        Raises:
          ConfigError: for an unknown or missing field, or a value that breaks a rule.
        """
        _check_known_fields(fields)
        required = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
        missing = [name for name in required if name not in fields]
        if missing:
            raise ConfigError(f"model config lacks the required fields {', '.join(missing)}")
        return cls(**fields)


EXECUTION_FIELDS = frozenset(
    {"activation_dtype", "expert_dispatch", "kernels", "layer_loop", "remat"}
)
INITIALIZATION_FIELDS = frozenset(
    {"initializer_stddev", "output_init", "router_init", "skip_class_bias"}
)

_ENUM_FIELDS: dict[str, type[enum.StrEnum]] = {
    name: kind
    for name, kind in get_type_hints(ModelConfig).items()
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum)
}

_POSITIVE_INTEGERS = (
    *("vocab_size", "hidden_size", "num_layers", "num_query_heads", "num_kv_heads", "head_dim"),
    *("num_experts", "expert_intermediate_size", "router_hidden_size", "max_position_embeddings"),
    *("experts_per_token", "depthwise_conv_width", "grouped_conv_width"),
)

_MAX_CONV_WIDTH = 4


def architecture_differences(saved: ModelConfig, current: ModelConfig) -> list[str]:
    """Fields that change what a set of parameters means, as "field: saved -> current" lines.

    Execution and initialisation fields are left out: they may change between runs.
    """
    before, after = saved.to_dict(), current.to_dict()
    ignored = EXECUTION_FIELDS | INITIALIZATION_FIELDS
    return [
        f"{name}: {before[name]} -> {after[name]}"
        for name in before
        if name not in ignored and before[name] != after[name]
    ]


def _check_known_fields(fields: Mapping[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(ModelConfig)]
    for name in fields:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ConfigError(f"model config has no field {name!r}{hint}")


def _parse_enum(name: str, value: Any, enum_type: type[enum.StrEnum]) -> enum.StrEnum:
    try:
        return enum_type(value)
    except ValueError:
        choices = ", ".join(member.value for member in enum_type)
        raise ConfigError(f"{name}={value!r} must be one of: {choices}") from None


def _require(condition: bool, config: ModelConfig, names: str, rule: str) -> None:
    if not condition:
        values = ", ".join(f"{name}={getattr(config, name)!r}" for name in names.split())
        raise ConfigError(f"{values}: {rule}")


def _validate(config: ModelConfig) -> None:
    _validate_numbers(config)
    _validate_heads(config)
    _validate_layer_pattern(config)
    _validate_variants(config)
    _require(
        config.activation_dtype in ("float32", "bfloat16"),
        config,
        "activation_dtype",
        "must be float32 or bfloat16",
    )


def _validate_numbers(config: ModelConfig) -> None:
    for name in _POSITIVE_INTEGERS:
        value = getattr(config, name)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        _require(is_integer and value >= 1, config, name, "must be a positive integer")
    for name in ("depthwise_conv_width", "grouped_conv_width"):
        _require(
            getattr(config, name) <= _MAX_CONV_WIDTH,
            config,
            name,
            f"at most {_MAX_CONV_WIDTH} taps are supported",
        )
    for name in ("rope_theta", "sliding_rope_theta", "rms_norm_epsilon", "initializer_stddev"):
        value = getattr(config, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _require(
            is_number and 0 < value < float("inf"), config, name, "must be a positive finite number"
        )


def _validate_heads(config: ModelConfig) -> None:
    _require(
        config.num_query_heads % config.num_kv_heads == 0,
        config,
        "num_query_heads num_kv_heads",
        "the KV heads must divide the query heads",
    )
    _require(
        config.kv_size % 2 == 0,
        config,
        "num_kv_heads head_dim",
        "their product must be even: half the value channels are delayed by one token",
    )
    _require(0.0 < config.rotary_fraction <= 1.0, config, "rotary_fraction", "must lie in (0, 1]")
    _require(
        config.rotary_dim >= 2 and config.rotary_dim % 2 == 0,
        config,
        "head_dim rotary_fraction",
        "their product, the rotary channels, must be even and at least 2",
    )


def _validate_variants(config: ModelConfig) -> None:
    _require(
        config.experts_per_token <= config.num_experts,
        config,
        "experts_per_token num_experts",
        "a token cannot have more experts than there are",
    )
    has_mixing = config.attention is AttentionKind.CCA
    for name, default in _CCA_ONLY.items():
        _require(
            has_mixing or getattr(config, name) is default,
            config,
            f"attention {name}",
            f"only cca has it; leave it at {default}",
        )
    is_latent = config.attention is AttentionKind.MLA
    for name in ("kv_latent_size", "query_latent_size"):
        size = getattr(config, name)
        _require(
            size is None or (is_latent and type(size) is int and size >= 1),
            config,
            f"attention {name}",
            "must be a positive integer with mla, and None with everything else",
        )
    if is_latent:
        _require(
            config.kv_latent_size is not None
            and config.num_kv_heads == config.num_query_heads
            and config.rotary_dim < config.head_dim,
            config,
            "attention kv_latent_size num_query_heads num_kv_heads rotary_fraction",
            "mla needs a kv_latent_size, as many KV heads as query heads, and channels without "
            "rotation in every head",
        )


_CCA_ONLY = {
    "convolutions": Convolutions.BOTH,
    "query_key_mean": QueryKeyMean.GROUP,
    "value_path": ValuePath.DELAYED_HALF,
}


def _validate_layer_pattern(config: ModelConfig) -> None:
    _require(
        len(config.layer_pattern) > 0 and config.num_layers % len(config.layer_pattern) == 0,
        config,
        "num_layers layer_pattern",
        "the length of the pattern must divide the number of layers",
    )
    window = config.sliding_window
    if LayerType.SLIDING in config.layer_pattern:
        is_window = isinstance(window, int) and not isinstance(window, bool) and window >= 1
        _require(
            is_window,
            config,
            "layer_pattern sliding_window",
            "sliding layers need a window of at least 1 key",
        )
    else:
        _require(
            window is None,
            config,
            "layer_pattern sliding_window",
            "a window is set but no layer slides; set it to None",
        )
