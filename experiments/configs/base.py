"""Every setting at its default. Other configs call `get_config` and change a few fields.

    python -m experiments.pretrain --config experiments/configs/base.py:mini --workdir DIR

The argument is a preset of `zaya_jax.presets`: nano (the default), mini, ablation_1b8, zaya1_8b, …
The fields, their meaning and their defaults stand in the dataclasses that `RunConfig` in
`zaya_jax/training/settings.py` lists; `--help` prints them.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from zaya_jax import presets
from zaya_jax.training.config_file import to_config_dict
from zaya_jax.training.settings import RunConfig


def get_config(name: str = "nano") -> ConfigDict:
    """All defaults, with the model of that preset."""
    return to_config_dict(RunConfig(model=presets.preset(name)))
