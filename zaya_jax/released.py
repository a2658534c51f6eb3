"""Which models are of the released architecture, for what only that one can do."""

from __future__ import annotations

import dataclasses

from zaya_jax.config import ConfigError, ModelConfig

# Fields in which every release has the default.
VARIANT_FIELDS = (
    *("attention", "convolutions", "query_key_mean", "value_path", "kv_latent_size"),
    *("query_latent_size", "router", "skip_class", "residual", "experts_per_token"),
)


def require_released(config: ModelConfig, what: str) -> None:
    """Refuses a variant of the architecture that no release has.

    Args:
      config: the architecture.
      what: needs the released one, for the message.

    Raises:
      ConfigError: names the first field that differs.
    """
    for field in dataclasses.fields(ModelConfig):
        value = getattr(config, field.name)
        if field.name in VARIANT_FIELDS and value != field.default:
            raise ConfigError(
                f"{field.name}={value!s}: no released model has this variant, only "
                f"{field.default!s}; {what}"
            )
