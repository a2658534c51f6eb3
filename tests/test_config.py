"""A bad model configuration is refused with the field, its value and the rule."""

from __future__ import annotations

from typing import Any

import pytest

from zaya_jax.config import ConfigError, ModelConfig, architecture_differences
from zaya_jax.presets import PRESETS, nano, preset


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers=0: must be a positive integer"),
        ({"hidden_size": 12.5}, "hidden_size=12.5: must be a positive integer"),
        ({"num_kv_heads": 3}, "num_query_heads=4, num_kv_heads=3: the KV heads must divide"),
        ({"num_query_heads": 3, "num_kv_heads": 3, "head_dim": 5}, "must be even"),
        ({"grouped_conv_width": 5}, "grouped_conv_width=5: at most 4 taps"),
        ({"experts_per_token": 9}, "experts_per_token=9, num_experts=8: .*more experts than"),
        (
            {"attention": "gqa", "convolutions": "none"},
            "attention=.*convolutions=.*only cca has it",
        ),
        ({"attention": "mla"}, "kv_latent_size=None, .*mla needs a kv_latent_size"),
        ({"kv_latent_size": 8}, "kv_latent_size=8: must be a positive integer with mla"),
        ({"rotary_fraction": 1.5}, r"rotary_fraction=1.5: must lie in \(0, 1\]"),
        ({"rotary_fraction": 0.1}, "head_dim=32, rotary_fraction=0.1: .*even and at least 2"),
        ({"rope_theta": float("inf")}, "rope_theta=inf: must be a positive finite number"),
        ({"layer_pattern": ("full",) * 3}, "must divide the number of layers"),
        ({"layer_pattern": ("sliding",)}, "sliding layers need a window"),
        ({"sliding_window": 8}, "sliding_window=8: a window is set but no layer slides"),
        ({"activation_dtype": "float16"}, "activation_dtype='float16': must be float32 or"),
        ({"remat": "some"}, "remat='some' must be one of: none, dots, full"),
        ({"kernels": "triton"}, "kernels='triton' must be one of: auto, pallas, xla"),
        ({"num_layer": 4}, "no field 'num_layer'; did you mean 'num_layers'"),
    ],
    ids=str,
)
def test_an_impossible_model_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nano().replace(**changes)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_configuration_survives_plain_values(name: str) -> None:
    assert ModelConfig.from_dict(preset(name).to_dict()) == preset(name)


def test_a_configuration_written_before_a_choice_existed_takes_its_default() -> None:
    fields = nano().to_dict()
    assert fields.pop("kernels") == "auto"
    assert ModelConfig.from_dict(fields) == nano()


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'zaya9' is unknown; the presets are: zaya1_8b"):
        preset("zaya9")


def test_only_fields_that_change_the_meaning_of_parameters_differ() -> None:
    changed = nano().replace(num_layers=2, remat="full", initializer_stddev=0.1)
    assert architecture_differences(nano(), changed) == ["num_layers: 4 -> 2"]
