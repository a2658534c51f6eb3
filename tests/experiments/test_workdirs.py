"""Every command that writes into --workdir names it when it cannot, before any work is done."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from zaya_jax.config import ConfigError

COMMANDS = {
    "experiments.ablate": (),
    "experiments.cascade": (),
    "experiments.cascade_data": (),
    "experiments.evaluate": ("--config.init_from=run",),
    "experiments.midtrain": ("--config.init_from=run",),
    "experiments.pretrain": (),
    "experiments.recipe": (),
    "experiments.replay_mismatch": (),
    "experiments.rl": ("--config.mesh.data=4", "--config.mesh.tensor=2"),
    "experiments.sft": ("--config.init_from=run",),
    "zaya_jax.systems.supervise": ("--", "true"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_cannot_be_written_to_is_named(command: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    message = rf"^--workdir='{file / 'run'}.*' cannot be written to: Not a directory; give a folder"
    with pytest.raises(ConfigError, match=message):
        importlib.import_module(command).main(["--workdir", str(file / "run"), *COMMANDS[command]])
