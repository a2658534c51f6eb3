"""Rendered jobs are valid for their scheduler, say why each setting is there, and start the job."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from zaya_jax.config import ConfigError
from zaya_jax.parallel.hosts import Hosts, detect
from zaya_jax.systems.launch import environment, main

JOB = ["python", "-m", "experiments.pretrain", "--workdir", "/scratch/a run"]


def _render(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main([*options, "--", *JOB]) == 0
    return capsys.readouterr().out


def test_the_slurm_script_is_valid_shell_and_starts_one_process_a_node(capsys):
    script = _render(capsys, "--render", "slurm", "--nodes", "16")
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.stderr == ""
    assert "#SBATCH --nodes=16" in script
    assert "#SBATCH --ntasks-per-node=1" in script
    assert f"srun --kill-on-bad-exit=1 {shlex.join(JOB)}" in script


@pytest.mark.parametrize("hardware", ["mi300x", "mi350", "h200"])
def test_every_exported_line_has_a_reason_above_it(capsys, hardware: str):
    lines = _render(capsys, "--render", "slurm", "--hardware", hardware).splitlines()
    exports = [number for number, line in enumerate(lines) if line.startswith("export ")]
    assert len(exports) == len(environment(hardware, "pollara"))
    assert all(lines[number - 1].startswith("# ") for number in exports)


def test_settings_differ_between_architectures():
    names = {name: [v.name for v in environment(name, "default")] for name in ("mi300x", "mi350")}
    assert "HSA_NO_SCRATCH_RECLAIM" in names["mi300x"]
    assert "RCCL_WARP_SPEED_AUTO" in names["mi350"]
    assert not any(variable.startswith("NCCL_IB") for variable in names["mi300x"])


def test_the_kubernetes_manifest_is_yaml_by_which_processes_find_each_other(capsys):
    yaml = pytest.importorskip("yaml")
    text = _render(capsys, "--render", "k8s", "--nodes", "4", "--image", "registry/zaya:1")
    service, job = yaml.safe_load_all(text)
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert service["metadata"]["name"] == pod["subdomain"] == "zaya"
    assert container["resources"]["limits"] == {"amd.com/gpu": 8}
    assert container["command"][2] == f"exec {shlex.join(JOB)}"
    found = detect({**variables, "JOB_COMPLETION_INDEX": "2"})
    assert found == Hosts("zaya-0.zaya:8476", 4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--render", "slurm", "--nodes", "0", "--", "x"], "--nodes=0"),
        (["--render", "slurm", "--name", "My Job", "--", "x"], "--name='My Job'"),
        (["--render", "slurm", "--hardware", "tpu", "--", "x"], "--hardware='tpu'"),
        (["--render", "slurm"], "give the job after --"),
        (["--render", "slurm", "--"], "nothing stands after --"),
    ],
)
def test_bad_input_is_one_error_that_names_it(options: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        main(options)
