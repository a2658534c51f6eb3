"""Muon on split arrays: the same numbers, and only the communication the mathematics needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def results() -> dict[str, dict]:
    command = [sys.executable, "-m", "tests.optimizer.sharded_muon"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_matrix_may_span_any_number_of_shards(results: dict[str, dict]):
    for name, result in results.items():
        assert result["difference"] < 2e-5, name


@pytest.mark.parametrize("name", ["layers and experts", "experts over both"])
def test_split_layers_and_experts_need_no_communication(name: str, results: dict[str, dict]):
    assert results[name]["collectives"] == []


@pytest.mark.parametrize("name", ["columns over 2", "columns over 8"])
def test_a_matrix_split_along_its_longer_side_is_never_gathered(
    name: str, results: dict[str, dict]
):
    assert results[name]["collectives"] == ["all-reduce"]
