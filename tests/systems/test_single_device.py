"""Products and copies of one device are timed, checked and written."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.systems.test_plan import TINY
from zaya_jax import presets
from zaya_jax.config import ConfigError
from zaya_jax.systems import bandwidth, matmul


def test_bandwidth_counts_what_is_read_and_written(tmp_path: Path):
    assert bandwidth.main(["--least", "4K", "--most", "16K", "--repeats", "1"]) == 0
    found = bandwidth.measure("triad", 4_096, repeats=1)
    assert found.is_right
    assert found.gb_s * 1e9 * found.seconds == pytest.approx(1.5 * 4_096)


def test_a_memory_that_returns_something_else_is_caught(monkeypatch: pytest.MonkeyPatch):
    def faulty(x: jax.Array) -> jax.Array:
        return (-x).at[5].set(0.0)

    monkeypatch.setitem(bandwidth.OPERATIONS, "copy", (faulty, 2.0))
    assert bandwidth.main(["--least", "4K", "--most", "4K", "--repeats", "1"]) == 1


def test_the_products_are_those_of_the_model():
    products = {name: sizes for name, *sizes in matmul.model_products(presets.zaya1_8b(), 16_384)}
    assert products["query projection"] == [16_384, 2_048, 1_024]
    assert products["expert gate and up"] == [1_024, 2_048, 4_096]
    assert products["LM head"] == [4_096, 2_048, 262_272]


def test_products_are_measured_aligned_and_not(tmp_path: Path):
    command = ["--config", TINY, "--tokens", "16", "--offsets", "0,1", "--repeats", "1"]
    assert matmul.main([*command, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "matmul.json").read_text())["measurements"]
    assert [one["outer"] for one in found[:2]] == [16, 17]
    assert "<svg" in (tmp_path / "matmul.svg").read_text()


def test_a_wrong_product_is_caught(monkeypatch: pytest.MonkeyPatch):
    def faulty(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.matmul(x, weight).at[-1, 0].add(1e3)

    monkeypatch.setattr(matmul, "product", faulty)
    assert not matmul.measure("p", 4, 8, 8, "float32", repeats=1).is_right


def test_bad_input_is_one_error_that_names_it():
    with pytest.raises(ConfigError, match="--tokens=0"):
        matmul.main(["--config", TINY, "--tokens", "0"])
    with pytest.raises(ConfigError, match="'4Q' is no size"):
        bandwidth.main(["--most", "4Q"])
