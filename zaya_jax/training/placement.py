"""Where a run's arrays live: on one device as JAX does it anyway, or split over a mesh."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
)

from zaya_jax.config import ConfigError, ModelConfig, RematPolicy
from zaya_jax.kernel_choice import check_kernels
from zaya_jax.parallel.mesh import BATCH_NAMES, TOKENS, build_mesh, check_model_fits
from zaya_jax.parallel.settings import MESH_AXES, MeshConfig
from zaya_jax.training.offload import (
    check_host_memory,
    fetch_moments,
    moments_on_host,
    send_moments,
)
from zaya_jax.training.shardings import tree_shardings

# One step: state and what it reads -> the next state, and what it reports.
Step = Callable[..., tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a run."""

    model: ModelConfig
    mesh: Mesh | AbstractMesh | None  # None: one device; abstract: for sizes and lowering only
    offload_moments: bool = False  # an optimiser's moments wait in host memory between updates

    def in_force(self) -> AbstractContextManager[Any]:
        """What is traced inside of it exchanges data over the mesh."""
        if self.mesh is None:
            return contextlib.nullcontext()
        if isinstance(self.mesh, AbstractMesh):
            return jax.sharding.use_abstract_mesh(self.mesh)
        return jax.set_mesh(self.mesh)

    def shardings(self, tree: Any) -> Any:
        """For `out_shardings`: of a tree with parameters or optimiser state. None: unsaid."""
        if not self.offload_moments:
            return None if self.mesh is None else tree_shardings(tree, self.model, self.mesh)
        if self.mesh is None:
            here = SingleDeviceSharding(jax.devices()[0])
            return moments_on_host(jax.tree.map(lambda _: here, tree), tree)
        return moments_on_host(tree_shardings(tree, self.model, self.mesh), tree)

    def abstract(self, tree: Any) -> Any:
        """The shapes and dtypes of a tree, with the shardings it is to have."""
        shardings = self.shardings(tree)
        if shardings is None:
            return tree
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            tree,
            shardings,
        )

    def abstract_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The same for a batch."""
        return {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._batch_sharding())
            for name, x in batch.items()
        }

    def abstract_rows(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """The same for rows whose arrays may have axes before [rows, seq]."""
        return {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._rows_sharding(x.ndim))
            for name, x in rows.items()
        }

    def place_rows(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Rows that this process holds whole, on the devices."""
        if self.mesh is None:
            return dict(rows)
        return {name: jax.device_put(x, self._rows_sharding(x.ndim)) for name, x in rows.items()}

    def constrained(self, tree: Any) -> Any:
        """Inside of a jitted function: a tree as for `shardings`, split and kept so."""
        if self.mesh is not None:
            shardings = tree_shardings(tree, self.model, self.mesh)
            tree = jax.lax.with_sharding_constraint(tree, shardings)
        return send_moments(tree) if self.offload_moments else tree

    def at_work(self, state: Any) -> Any:
        """Inside of a jitted function: a state with all that an update reads on the device."""
        return fetch_moments(state) if self.offload_moments else state

    def between_steps(self, step: Step) -> Step:
        """`step` for states that are kept as this placement keeps them, to be jitted."""
        if not self.offload_moments:
            return step

        def fetch_and_send(state: Any, *inputs: Any) -> tuple[Any, Any]:
            state, report = step(fetch_moments(state), *inputs)
            return send_moments(state), report

        return fetch_and_send

    def replicated(self) -> NamedSharding | None:
        """For results that every process reads. None: unsaid."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    def place_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """This process' rows of a batch on the devices.

        On one device the jitted step takes them as they are.
        """
        if self.mesh is None:
            return dict(batch)
        if jax.process_count() == 1:
            return {name: jax.device_put(x, self._batch_sharding()) for name, x in batch.items()}
        place = jax.make_array_from_process_local_data
        return {name: place(self._batch_sharding(), x) for name, x in batch.items()}

    def place_whole_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The same for a batch that every process holds whole."""
        if self.mesh is None or jax.process_count() == 1:
            return self.place_batch(batch)
        sharding = NamedSharding(self.mesh, TOKENS)
        return {
            name: jax.make_array_from_callback(x.shape, sharding, x.__getitem__)
            for name, x in batch.items()
        }

    def _rows_sharding(self, axes: int) -> NamedSharding | None:
        if self.mesh is None:
            return None
        return NamedSharding(self.mesh, PartitionSpec(*(None,) * (axes - 2), *TOKENS))

    def _batch_sharding(self) -> NamedSharding | None:
        return None if self.mesh is None else NamedSharding(self.mesh, TOKENS)


def choose_placement(
    config: MeshConfig,
    model: ModelConfig,
    *,
    batch_size: int,
    sequence_length: int,
    names: tuple[str, str] = BATCH_NAMES,
    devices: Sequence[jax.Device] | None = None,
    offload_moments: bool = False,
) -> Placement:
    """A mesh over `devices`, None being all; none where there is one device.

    `names` is what errors call the batch size and the length of its rows.

    Raises:
      ConfigError: when mesh, model, batch and the number of devices do not fit together, and for
        kernels or offloading that cannot run here.
    """
    check_kernels("config.model.kernels", model.kernels)
    mesh = build_mesh(config, devices)
    _check_offloading(model, offload_moments, mesh.devices.flat[0])
    if mesh.size == 1:
        return Placement(model, None, offload_moments)
    check_model_fits(mesh, model, batch=batch_size, sequence=sequence_length, names=names)
    inner = mesh.shape["context"] * mesh.shape["tensor"]
    if jax.process_count() > 1 and jax.local_device_count() % inner:
        raise ConfigError(
            f"mesh.context * mesh.tensor = {inner} devices share their rows, but a process has "
            f"{jax.local_device_count()}; processes read rows of their own, so keep both within one"
        )
    return Placement(model, mesh, offload_moments)


def plan_placement(
    config: MeshConfig,
    model: ModelConfig,
    *,
    batch_size: int,
    sequence_length: int,
    names: tuple[str, str] = BATCH_NAMES,
    others: int = 0,
    offload_moments: bool = False,
) -> Placement:
    """The same for devices that need not be there: as many as the sizes of the mesh ask for.

    An axis of -1 takes what this machine's devices leave, at least 1; `others` of them are not
    counted.

    Raises:
      ConfigError: when mesh, model and batch do not fit together, and for kernels that cannot run
        here.
    """
    check_kernels("config.model.kernels", model.kernels)
    fixed = math.prod(max(getattr(config, axis), 1) for axis in MESH_AXES)
    has_rest = -1 in (getattr(config, axis) for axis in MESH_AXES)
    present = max(1, jax.device_count() - others) if has_rest else fixed
    sizes = config.sizes(present if present % fixed == 0 else fixed)
    if math.prod(sizes.values()) == 1:
        return Placement(model, None, offload_moments)
    kinds = (AxisType.Auto,) * len(MESH_AXES)
    mesh = AbstractMesh(tuple(sizes.values()), MESH_AXES, axis_types=kinds)
    check_model_fits(mesh, model, batch=batch_size, sequence=sequence_length, names=names)
    return Placement(model, mesh, offload_moments)


def _check_offloading(model: ModelConfig, offload_moments: bool, device: jax.Device) -> None:
    if offload_moments:
        check_host_memory("optimizer.offload_state=True", "set it to False", device)
    if model.remat is RematPolicy.OFFLOAD:
        check_host_memory("model.remat=offload", "set it to full", device)
