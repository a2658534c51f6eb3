"""`load_checkpoint` reads any layout onto any mesh, in the dtype asked for."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.hub_folders import (
    BFLOAT16,
    TINY,
    new_keys,
    random_tensors,
    v2_keys,
    write_folder,
)
from zaya_jax import load_checkpoint
from zaya_jax.checkpoint.convert import convert
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.checkpoint.manifest import write_manifest
from zaya_jax.checkpoint.open import open_checkpoint
from zaya_jax.config import Kernels
from zaya_jax.model.transformer import Transformer

WHERE = ("released", "orbax")


@pytest.fixture(scope="module", params=[np.dtype(np.float32), BFLOAT16], ids=lambda d: d.name)
def folders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The same model as a released folder and as an Orbax checkpoint."""
    folder = tmp_path_factory.mktemp("load")
    tensors = random_tensors("zyphra", TINY, request.param)
    paths = {where: folder / where for where in WHERE}
    write_folder(paths["released"], v2_keys(), tensors, shards=2)
    convert(paths["released"], paths["orbax"])
    return paths


def dtypes(variables: dict) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    return {"/".join(key.key for key in path): leaf.dtype.name for path, leaf in leaves}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", [None, jnp.float32, "bfloat16"])
def test_dtypes(folders: dict[str, Path], where: str, dtype: object):
    _, stored = load_checkpoint(folders["released"])
    _, variables = load_checkpoint(folders[where], dtype=dtype)
    after = dtypes(variables)
    matrices = (
        "params/embedding",
        "params/layers/experts/down",
        "params/layers/attention/key/weight",
    )
    kept = (
        "balancing/biases",
        "params/layers/router/fc1/weight",
        "params/layers/attention/grouped_conv",
        "params/layers/attention_norm/weight",
        "params/layers/expert_residual/residual_scale",
        "params/router_state_scale",
    )
    assert {after[name] for name in kept} == {"float32"}
    assert {after[name] for name in matrices} == {jnp.dtype(dtype or "float32").name}
    assert set(dtypes(stored).values()) == {"float32"}
    for a, b in zip(jax.tree.leaves(stored), jax.tree.leaves(variables), strict=True):
        np.testing.assert_array_equal(np.asarray(a.astype(b.dtype)), np.asarray(b))


@pytest.mark.parametrize("folders", [BFLOAT16], indirect=True)
def test_the_model_runs_with_narrow_matrices(folders: dict[str, Path]):
    config, variables = load_checkpoint(folders["orbax"], dtype="bfloat16")
    tokens = jnp.asarray([[2, 5, 7, 11]])
    logits = jax.jit(Transformer(config).apply)(variables, tokens).logits
    assert logits.dtype == jnp.float32
    assert bool(jnp.isfinite(logits).all())


@pytest.mark.parametrize("folders", [BFLOAT16], indirect=True)
def test_a_run_that_insisted_on_kernels_loads_where_there_are_none(
    folders: dict[str, Path], tmp_path: Path
):
    folder = Path(shutil.copytree(folders["orbax"], tmp_path / "run"))
    metadata = folder / "metadata" / "metadata"
    saved = json.loads(metadata.read_text())
    saved["config"]["model"]["kernels"] = "pallas"
    metadata.write_text(json.dumps(saved))
    write_manifest(folder)
    assert open_checkpoint(folder).config.kernels is Kernels.PALLAS
    config, variables = load_checkpoint(folder, dtype="bfloat16")
    assert config.kernels is Kernels.AUTO
    tokens = jnp.asarray([[2, 5, 7, 11]])
    assert bool(jnp.isfinite(jax.jit(Transformer(config).apply)(variables, tokens).logits).all())


@pytest.mark.parametrize("folders", [BFLOAT16], indirect=True)
def test_rules_need_a_mesh_that_has_their_axes_and_divides(folders: dict[str, Path]):
    mesh = jax.make_mesh((1,), ("model",))
    with pytest.raises(CheckpointError, match="give mesh="):
        load_checkpoint(folders["released"], rules={"experts": "model"})
    with pytest.raises(CheckpointError, match="'experts' over 'expert'; the mesh has model"):
        load_checkpoint(folders["released"], mesh, {"experts": "expert"})
    with pytest.raises(CheckpointError, match="'expertz'"):
        load_checkpoint(folders["released"], mesh, {"expertz": "model"})


@pytest.mark.parametrize("folders", [BFLOAT16], indirect=True)
@pytest.mark.parametrize("dtype", ["int8", "bool", "nonsense", np.float64, "float8_e4m3fn"])
def test_matrices_take_floating_dtypes_only(folders: dict[str, Path], dtype: object):
    for path in folders.values():
        with pytest.raises(CheckpointError, match="must be one of float32, bfloat16, float16"):
            load_checkpoint(path, dtype=dtype)


@pytest.mark.parametrize("folders", [BFLOAT16], indirect=True)
def test_rules_that_cannot_be_meant(folders: dict[str, Path]):
    mesh = jax.make_mesh((1,), ("model",))
    for wrong in (3, ["model", 3], {"model": 1}):
        with pytest.raises(CheckpointError, match=r"'vocab' over .*; give a mesh axis"):
            # Without the checks of annotations, which only tests have.
            inspect.unwrap(load_checkpoint)(folders["released"], mesh, {"vocab": wrong})
    twice = {"experts": "model", "gate_up": "model"}
    with pytest.raises(CheckpointError, match="both 'experts' and 'gate_up' over 'model'"):
        load_checkpoint(folders["orbax"], mesh, twice)
    with pytest.raises(CheckpointError, match="both 'vocab' and 'vocab' over 'model'"):
        load_checkpoint(folders["released"], mesh, {"vocab": ("model", "model")})


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("value", "dtype"), [(1e5, "float16"), (3.4e38, "bfloat16")])
def test_numbers_too_large_for_the_dtype(where: str, value: float, dtype: str, tmp_path: Path):
    tensors = random_tensors("transformers", TINY)
    tensors["model.embed_tokens.weight"][3, 4] = value
    write_folder(tmp_path / "released", new_keys(), tensors)
    convert(tmp_path / "released", tmp_path / "orbax")
    load_checkpoint(tmp_path / where)
    with pytest.raises(CheckpointError, match=f"embed.*{dtype}.*wider"):
        load_checkpoint(tmp_path / where, dtype=dtype)


MESH = """
import json, sys
import jax, numpy as np
from zaya_jax import load_checkpoint
from zaya_jax.checkpoint.manager import CheckpointError
mesh = jax.make_mesh((2, 2), ("data", "model"))
rules = {"experts": "model", "vocab": ("data", "model"), "query": "model", "embed": None}
specs = []
for path in sys.argv[1:]:
    _, plain = load_checkpoint(path)
    _, split = load_checkpoint(path, mesh, rules, "float32")
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(split), strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b))
    params = split["params"]
    layers, norm = params["layers"], params["final_norm"]["weight"]
    leaves = params["embedding"], layers["experts"]["gate_up"], norm
    parts = [leaf.addressable_shards[0].data for leaf in leaves]
    specs.append([[list(a.shape), list(b.shape)] for a, b in zip(leaves, parts, strict=True)])
    specs[-1].append(len(params["embedding"].sharding.device_set))
    try:
        load_checkpoint(path, mesh, {"kv_heads": ("data", "model")})
    except CheckpointError as error:
        specs[-1].append(str(error))
print(json.dumps(specs))
"""


@pytest.mark.parametrize("folders", [BFLOAT16], indirect=True)
def test_arrays_are_split_over_a_mesh_as_the_rules_say(folders: dict[str, Path]):
    import os

    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "-c", MESH, *(str(folders[where]) for where in WHERE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for embedding, experts, norm, devices, error in json.loads(done.stdout):
        assert embedding == [[48, 32], [12, 32]]
        assert experts == [[3, 12, 48, 32], [3, 6, 48, 32]]
        assert norm == [[32], [32]]
        assert devices == 4
        assert "'kv_heads' has 2 entries, which the mesh's 4 parts do not divide" in error


def test_a_released_folder_may_be_deleted_after_loading(tmp_path: Path):
    """Arrays are copies: the files can go, or change, without a crash."""
    tensors = random_tensors("transformers", TINY)
    folder = write_folder(tmp_path / "model", new_keys(), tensors)
    _, variables = load_checkpoint(folder)
    (folder / "model.safetensors").write_bytes(b"")
    np.testing.assert_array_equal(
        variables["params"]["embedding"], tensors["model.embed_tokens.weight"]
    )
