"""Which form runs is never changed silently; what cannot run says why and what to use instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas import backend, tune
from kernels_pallas.attention_decode import attention_decode
from kernels_pallas.backend import KernelError, Target, Tiles, choose, compile_for, tiles
from kernels_pallas.cca import CCAWeights, cca_mix
from kernels_pallas.cca_chunk import CCAState, cca_mix_chunk
from kernels_pallas.expert_mlp import expert_mlp
from kernels_pallas.flash_attention import flash_attention
from kernels_pallas.head_statistics import token_log_probabilities
from kernels_pallas.newton_schulz import newton_schulz
from kernels_pallas.norm import scaled_residual_norm
from kernels_pallas.real_shapes import cases

OPERATIONS = (
    attention_decode,
    cca_mix,
    cca_mix_chunk,
    expert_mlp,
    flash_attention,
    newton_schulz,
    scaled_residual_norm,
    token_log_probabilities,
)


def on_gpu(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    class Device:
        device_kind = kind

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [Device()])


def test_auto_is_xla_on_a_cpu_and_the_kernels_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("auto", "norm") is None
    assert choose("xla", "norm") is None
    on_gpu(monkeypatch, "gfx942")
    assert choose("auto", "norm") == choose("pallas", "norm") == Target("mi300x")
    assert choose("xla", "norm") is None
    on_gpu(monkeypatch, "NVIDIA H200")
    assert choose("auto", "norm") == Target("h200")


def test_auto_on_a_gpu_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, "gfx942")
    with pytest.raises(KernelError, match="norm: .* head_dim = 300; use implementation='xla'"):  # noqa: RUF043
        choose("auto", "norm", [None, "head_dim = 300"])
    on_gpu(monkeypatch, "NVIDIA T4")
    with pytest.raises(
        KernelError, match=r"no tuned table names the device kind 'NVIDIA T4' .*tune"
    ):
        choose("auto", "norm")


def test_all_reasons_are_shown_together() -> None:
    with compile_for(Target("mi300x")), pytest.raises(KernelError, match=r"first; second; use"):
        choose("pallas", "norm", ["first", None, "second"])


def test_unknown_words_and_missing_tables_are_named() -> None:
    with pytest.raises(KernelError, match="norm: implementation = 'triton': must be"):
        choose("triton", "norm")
    with pytest.raises(KernelError, match=r"no tuned table 'mi100' \(tables: .*\); use impl"):
        tiles(Target("mi100"), "norm_forward")
    with pytest.raises(
        KernelError,
        match="'mi300x' has no tiles for it at size 512, 256 is the most; use implementation='xla'",
    ):
        tiles(Target("mi300x"), "attention_forward", 512)


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without the annotation checks of tests, as a user has it."""
    return getattr(function, "__wrapped__", function)


def _arrays(*shapes: tuple[int, ...]) -> list[jax.Array]:
    return [jnp.zeros(shape) for shape in shapes]


def _wrong_calls() -> dict[str, tuple[Callable[[], Any], str]]:
    """For every operation a call with one array of the wrong shape, and what is to be said."""
    q, kv, ids = jnp.zeros((2, 3, 4, 16)), jnp.zeros((2, 3, 1, 16)), jnp.zeros(2, jnp.int32)
    x, vector, matrix = jnp.zeros((2, 8)), jnp.zeros(8), jnp.zeros((5, 8))
    names = ("hidden_bias", "hidden_scale", "residual_bias", "residual_scale", "norm_weight")
    vectors = dict.fromkeys(names, vector)
    streams = _arrays((1, 3, 24), (1, 3, 4), (1, 3, 4))
    weights = CCAWeights(*_arrays((24, 2), (24,), (24, 8, 2), (24,), (1,)), None)
    cca = {"cos": jnp.zeros((1, 3, 2)), "sin": jnp.zeros((1, 3, 2))}
    state = CCAState(*_arrays((1, 3, 24), (1, 4)))
    return {
        "norm": (
            lambda: scaled_residual_norm(x, x, epsilon=1.0, **{**vectors, "norm_weight": x}),
            r"scaled_residual_norm: .* norm_weight is \(2, 8\), must be \[channels\]",
        ),
        "attention": (
            lambda: flash_attention(q, kv, kv, segment_ids=ids[None]),
            r"flash_attention: .* segment_ids is \(1, 2\), must be \(2, 3\)",
        ),
        "decode": (
            lambda: attention_decode(q, kv, kv, ids[:1]),
            r"attention_decode: .* lengths is \(1,\), must be \(2,\)",
        ),
        "log probabilities": (
            lambda: token_log_probabilities(x, matrix[:, :7], None, ids),
            r"token_log_probabilities: .* weight is \(5, 7\), must be \(5, 8\)",
        ),
        "experts": (
            lambda: expert_mlp(
                x, ids[:1], *_arrays((2,), (3, 4, 8), (3, 8, 2)), dispatch="grouped"
            ),
            r"expert_mlp: .* class_index is \(1,\), must be \(2,\)",
        ),
        "newton schulz": (
            lambda: newton_schulz(x),
            r"newton_schulz: .* matrices is \(2, 8\), must be \[batch, rows, columns\]",
        ),
        "cca": (
            lambda: cca_mix(*streams, weights, **{**cca, "cos": jnp.zeros((1, 3, 5))}),
            r"cca_mix: .* cos is \(1, 3, 5\), must be \(1, 3, 4\)",
        ),
        "cca chunk": (
            lambda: cca_mix_chunk(*streams, weights, state, **cca),
            r"cca_mix_chunk: .* state_query_key is \(1, 3, 24\), must be \(1, 2, 24\)",
        ),
    }


@pytest.mark.parametrize(
    "operation",
    [
        "norm",
        "attention",
        "decode",
        "log probabilities",
        "experts",
        "newton schulz",
        "cca",
        "cca chunk",
    ],
)
def test_arrays_that_do_not_fit_are_named(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for function in OPERATIONS:
        monkeypatch.setitem(globals(), function.__name__, bare(function))
    call, message = _wrong_calls()[operation]
    with pytest.raises(KernelError, match=message):
        call()


def test_what_a_kernel_leaves_out_is_nan_when_interpreted() -> None:
    """So every test that finds its outputs finite has seen all of them written."""

    def first_row(x_ref: Any, out_ref: Any) -> None:
        column = jnp.arange(3)
        backend.store(out_ref, 0, column, value=backend.load(x_ref, 0, column))

    plan = Tiles((), 1, 1)
    out = backend.call(
        first_row,
        jnp.ones((2, 3)),
        target=backend.INTERPRETER,
        tiles=plan,
        grid=(1,),
        outputs=jax.ShapeDtypeStruct((2, 3), jnp.float32),
        name="first_row",
    )
    np.testing.assert_array_equal(out, [[1.0] * 3, [np.nan] * 3])


def test_tables_name_the_same_kernels() -> None:
    names = {
        name: {key.split(":")[0] for key in json.loads(path.read_text())["tiles"]}
        for path in backend.TABLES.glob("*.json")
        for name in [path.stem]
    }
    assert set(names) == {"interpreter", "mi300x", "mi350", "h200"}
    assert all(kernels == names["interpreter"] for kernels in names.values())


def test_the_smallest_entry_that_fits_is_taken() -> None:
    target = Target("mi300x")
    assert tiles(target, "attention_forward", 65) == tiles(target, "attention_forward", 128)
    assert tiles(target, "attention_forward", 64) != tiles(target, "attention_forward", 128)


def test_tuning_tries_neighbours_and_writes_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiles(Target("mi300x"), "expert_down")
    assert {p.num_warps for p in tune.candidates(plan)} == {4, 8}
    assert max(map(tune.area, tune.candidates(plan))) == 2 * tune.area(plan)
    old = {"query": 16, "num_warps": 4, "num_stages": 1}
    entries = {"attention_dq:128": old, "expert_down": old}
    path = tmp_path / "new.json"
    path.write_text(json.dumps({"device_kinds": [], "made_by": "by hand", "tiles": entries}))
    monkeypatch.setattr(tune, "TABLES", tmp_path)
    monkeypatch.setattr(backend, "TABLES", tmp_path)
    assert tiles(Target("new"), "attention_dq", 128) == Tiles.parse(old)
    chosen = Tiles((("key", 32), ("query", 16)), 4, 1)
    tune.write("new", "attention_dq", chosen, "test")
    assert tiles(Target("new"), "attention_dq", 128) == chosen
    written = json.loads(path.read_text())
    assert written["made_by"] == "by hand"  # of the other entries, which are as they were
    assert written["retuned"] == {"attention_dq:128": "test"}
    assert written["tiles"]["expert_down"] == old
    assert [p.name for p in tmp_path.iterdir()] == ["new.json"]


def test_timed_integers_are_those_of_use() -> None:
    """Lengths near the cache's, long segments and a skewed router, or the times say nothing."""
    rng = np.random.default_rng(0)
    drawn = {
        case.operation: [
            tune._random_integers(case, a.shape, rng)
            for a in jax.tree.leaves(case.arguments)
            if jnp.issubdtype(a.dtype, jnp.integer)
        ]
        for case in cases()
    }
    (lengths,) = drawn["attention_decode"]
    assert 24_576 <= lengths.min() < lengths.max() <= 32_768
    assert (np.diff(lengths) >= 0).all()
    (segments,) = drawn["attention_packed"]
    assert set(np.unique(np.diff(segments))) <= {0, 1, 2}
    assert 2 <= len(np.unique(segments)) <= 9
    (classes,) = drawn["experts"]
    counts = np.bincount(classes, minlength=17)
    assert counts.shape == (17,)
    assert counts[:4].min() > 2 * counts[4:].max()
    (targets,) = drawn["cross_entropy"]
    assert targets.max() > 200_000


def test_tuning_what_has_no_product_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        tune.main(["--target", "mi300x", "--only", "norm", "--dry-run"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("norm: nothing is chosen: no product")


def test_tuning_by_time_without_a_gpu_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        tune.main(["--target", "mi300x", "--time"])
    assert stop.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith("error: --time needs the GPU, the default backend is 'cpu'")
    assert err.count("\n") == 1


def test_a_device_of_a_known_architecture_begins_a_table_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in backend.TABLES.glob("*.json"):
        (tmp_path / table.name).write_bytes(table.read_bytes())
    monkeypatch.setattr(tune, "TABLES", tmp_path)
    monkeypatch.setattr(backend, "TABLES", tmp_path)

    def command(*words: str) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as stop:
            tune.main(["--target", "h200", "--only", "norm", *words])
        return stop.value.code, capsys.readouterr().err

    status, err = command("--table", "h100")
    assert status == 1
    assert "no table 'h100' (tables: h200, interpreter, mi300x, mi350); --device-kind" in err
    new = ("--table", "h100", "--device-kind", "NVIDIA H100")
    assert command(*new, "--dry-run")[0] == 1
    assert command(*new) == (0, "")
    on_gpu(monkeypatch, "NVIDIA H100")
    assert choose("auto", "norm") == Target("h100")
    assert tiles(Target("h100"), "expert_dx") == tiles(Target("h200"), "expert_dx")
    assert command(*new)[1].startswith("error: the table 'h100' exists, for NVIDIA H100: tune it")
    status, err = command("--time")
    assert status == 1
    assert "this machine's GPU is 'NVIDIA H100', the table 'h200' is for NVIDIA H200" in err
    backend.forget_tables()
