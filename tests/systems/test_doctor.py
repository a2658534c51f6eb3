"""Each known-bad combination is found from the facts that make it, and a healthy machine is not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from zaya_jax.systems import doctor
from zaya_jax.systems.doctor import diagnose
from zaya_jax.systems.known_problems import PROBLEMS, version, xla_flag
from zaya_jax.systems.machine_facts import Facts

HEALTHY = Facts(
    versions={"jax": "0.10.2", "jaxlib": "0.10.2", "jax-rocm7-plugin": "0.10.2"},
    backend="gpu",
    backend_error="",
    devices=("AMD Instinct MI300X",) * 8,
    architecture="gfx942",
    rocm_version="7.2.1",
    driver="6.14",
    environment={"HSA_NO_SCRATCH_RECLAIM": "1", "XLA_FLAGS": "--xla_gpu_autotune_level=4"},
    missing_libraries=(),
    has_stray_net_plugin=False,
    host_address="10.0.0.7",
    numa_balancing=False,
    processes_per_node=1,
)


def _with(**changes: Any) -> Facts:
    extra = changes.pop("variables", {})
    facts = dataclasses.replace(HEALTHY, **changes)
    return dataclasses.replace(facts, environment={**facts.environment, **extra})


def test_a_healthy_node_has_no_problem():
    assert diagnose(HEALTHY) == []


CASES = [
    ({"variables": {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}}, "#39602"),
    ({"processes_per_node": 8}, "#26298"),
    ({"host_address": "127.0.1.1", "variables": {"SLURM_JOB_ID": "1"}}, "MAD#228"),
    ({"rocm_version": "7.2.0"}, "#46952"),
    ({"variables": {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}}, "rocm-jax#360"),
    ({"versions": {"jaxlib": "0.9.1"}}, "#38088"),
    ({"versions": {"jaxlib": "0.10.2", "jax-rocm7-plugin": "0.9.0"}}, "TheRock#8163"),
    ({"missing_libraries": ("dw",)}, "#268"),
    ({"backend": "none", "backend_error": "no library"}, "ROCm/jax#268"),
    ({"backend": "cpu"}, "#25856"),
    ({"has_stray_net_plugin": True}, "bare-metal"),
    ({"architecture": "gfx950"}, "#800"),
    ({"architecture": "gfx950", "variables": {"AMD_COMGR_NAMESPACE": "1"}}, "env_spec"),
    ({"environment": {}}, "#8657"),
    ({"variables": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.99"}}, "#17426"),
    ({"numa_balancing": True}, "system validation"),
]


@pytest.mark.parametrize(("changes", "source"), CASES, ids=[source for _, source in CASES])
def test_a_bad_combination_is_found_with_its_mend(changes: dict[str, Any], source: str):
    found = [problem for problem in diagnose(_with(**changes)) if source in problem.source]
    assert len(found) >= 1
    assert all(problem.mend for problem in found)


def test_every_known_problem_has_a_case():
    covered = {p.name for changes, _ in CASES for p in diagnose(_with(**changes))}
    assert {problem.name for problem in PROBLEMS} == covered


def test_an_empty_list_of_command_buffers_is_a_mend():
    flags = {"XLA_FLAGS": "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=4"}
    assert diagnose(_with(rocm_version="7.2.0", variables=flags)) == []


def test_versions_and_flags_are_read_as_their_owners_do():
    assert version("7.2.0-43") == (7, 2, 0)
    assert version("unknown") == ()
    facts = _with(variables={"XLA_FLAGS": "--xla_a=1 --xla_a=2 --xla_b"})
    assert (xla_flag(facts, "xla_a"), xla_flag(facts, "xla_b")) == ("2", "")
    assert xla_flag(facts, "xla_c") is None


def test_the_report_shows_facts_and_keeps_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    facts = _with(numa_balancing=True, variables={"SECRET": "hush", "NCCL_DEBUG": "INFO"})
    monkeypatch.setattr(doctor, "gather", lambda: facts)
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert "PROBLEM  NUMA balancing" in text
    assert "NCCL_DEBUG" in text
    assert "hush" not in text
    assert doctor.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["mend"].startswith("echo 0")
