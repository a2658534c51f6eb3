"""From a traced function to the machine code of its Pallas kernels, with no GPU present.

jax lowers the function for ``rocm`` or ``cuda``; the Triton IR inside each kernel's custom call is
printed as text by jaxlib's own MLIR, so that bytecode versions cannot clash, and the ``triton``
package compiles it for the target. The figures come from the code object's own metadata.

XLA carries its own copy of Triton, so registers on a device may differ by a little; the tile sizes
that fit here are those that the tables use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import re
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from kernels_pallas.backend import KernelError

TRITON_VERSION = "3.9.0"
_VGPRS_PER_LANE = 512  # of a SIMD on CDNA 3 and 4, arch and accumulation registers together
_NVIDIA_REGISTERS = 65536  # of a streaming multiprocessor
_MOST_WAVES = 8  # per SIMD on CDNA 3 and 4


@dataclasses.dataclass(frozen=True)
class Machine:
    """How one target is lowered for and compiled, and what its kernels must keep within."""

    platform: str  # as jax names it
    device_kind: str
    backend: str  # as triton names it
    arch: str | int
    lanes: int  # of a wave or warp
    shared_bytes: int  # a workgroup may use
    most_registers: int  # a lane may use


MACHINES = {
    "mi300x": Machine("rocm", "gfx942", "hip", "gfx942", 64, 64 * 1024, 256),
    "mi350": Machine("rocm", "gfx950", "hip", "gfx950", 64, 160 * 1024, 256),
    "h200": Machine("cuda", "NVIDIA H200", "cuda", 90, 32, 227 * 1024, 255),
}


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one compiled kernel uses.

    Attributes:
      registers: of a lane; on AMD arch and accumulation registers together, as allocated.
      spills: registers that did not fit (AMD: vector and scalar; NVIDIA: bytes of local memory).
      scratch_bytes: private memory of a lane.
      shared_bytes: LDS or shared memory of a workgroup.
      matrix_instructions: MFMA, or WGMMA and MMA, in the code.
      waves: on AMD waves a SIMD can hold by registers and LDS; on NVIDIA warps a scheduler can.
    """

    kernel: str
    target: str
    num_warps: int
    num_stages: int
    registers: int
    spills: int
    scratch_bytes: int
    shared_bytes: int
    matrix_instructions: int
    waves: int


def triton_version() -> str:
    """The installed triton, checked.

    Raises:
      KernelError: when it is absent or of another version.
    """
    found = _triton().__version__
    if found != TRITON_VERSION:
        raise KernelError(
            f"triton {found} is installed: the limits are known for {TRITON_VERSION}; "
            f"pip install triton=={TRITON_VERSION}"
        )
    return found


def _triton() -> ModuleType:
    try:
        return importlib.import_module("triton")
    except ModuleNotFoundError:
        raise KernelError(
            f"the offline compile needs triton: pip install triton=={TRITON_VERSION}"
        ) from None


def triton_kernels(
    function: Callable[..., Any], *arguments: Any, target: str
) -> Iterator[tuple[str, str, int, int]]:
    """(name, Triton IR as text, num_warps, num_stages) of every Pallas kernel a function calls."""
    jax_mlir = importlib.import_module("jax._src.interpreters.mlir")
    jaxlib_triton = importlib.import_module("jax._src.lib.triton")
    ir = importlib.import_module("jax._src.lib.mlir").ir
    machine = MACHINES[target]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The Pallas Triton backend is deprecated")
        with _abstract_device(machine.device_kind):
            traced = jax.jit(function).trace(*arguments)
            module = traced.lower(lowering_platforms=(machine.platform,)).compiler_ir("stablehlo")
    for call in _triton_calls(module.operation):
        config = call.attributes["mhlo.backend_config"]
        context = jax_mlir.make_ir_context()
        jaxlib_triton.dialect.register_dialect(context)
        with context:
            text = str(ir.Module.parse(ir.StringAttr(config["ir"]).value_bytes))
        warps, stages = (ir.IntegerAttr(config[key]).value for key in ("num_warps", "num_stages"))
        yield ir.StringAttr(config["name"]).value, text, warps, stages


def _triton_calls(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name == "stablehlo.custom_call" and "triton" in str(
                    inner.attributes["call_target_name"]
                ):
                    yield inner
                yield from _triton_calls(inner.operation)


def _abstract_device(device_kind: str) -> Any:
    """From 0.11 on jax wants a device to lower for, and an abstract one of the mesh will do."""
    if jax.__version_info__ < (0, 11):
        return contextlib.nullcontext()
    abstract_device = importlib.import_module("jax._src.mesh").AbstractDevice
    device = abstract_device(device_kind=device_kind, num_cores=None, platform="gpu")
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        mesh = jax.sharding.AbstractMesh((), ())
    return jax.sharding.use_abstract_mesh(mesh.update(abstract_device=device))


def figures(kernel: str, text: str, num_warps: int, num_stages: int, target: str) -> Figures:
    """Compile Triton IR for a target and read what the code uses."""
    machine = MACHINES[target]
    compiled = _compile(text, num_warps, num_stages, machine)
    read = _amd if machine.backend == "hip" else _nvidia
    return Figures(kernel, target, num_warps, num_stages, **read(compiled, num_warps, machine))


def _compile(text: str, num_warps: int, num_stages: int, machine: Machine) -> Any:
    triton = _triton()
    gpu_target = importlib.import_module("triton.backends.compiler").GPUTarget
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
        path = Path(folder) / "kernel.ttir"
        path.write_text(text, encoding="utf-8")
        return triton.compile(
            str(path),
            target=gpu_target(machine.backend, machine.arch, machine.lanes),
            options={"num_warps": num_warps, "num_stages": num_stages},
        )


def _amd(compiled: Any, num_warps: int, machine: Machine) -> dict[str, int]:
    assembly = compiled.asm["amdgcn"]

    def field(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", assembly)
        return int(found.group(1)) if found else 0

    registers = field("vgpr_count")  # on CDNA 2 and later the accumulation registers are counted in
    shared = compiled.metadata.shared
    granule = max(8, math.ceil(registers / 8) * 8)
    by_registers = min(_MOST_WAVES, _VGPRS_PER_LANE // granule)
    workgroups = machine.shared_bytes // shared if shared else _MOST_WAVES * 4
    by_shared = max(0, workgroups * num_warps // 4)
    return {
        "registers": registers,
        "spills": field("vgpr_spill_count") + field("sgpr_spill_count"),
        "scratch_bytes": field("private_segment_fixed_size"),
        "shared_bytes": shared,
        "matrix_instructions": len(re.findall(r"\bv_s?mfmac?_", assembly)),
        "waves": min(by_registers, by_shared, _MOST_WAVES) if shared else by_registers,
    }


def _nvidia(compiled: Any, num_warps: int, machine: Machine) -> dict[str, int]:
    usage = _resource_usage(compiled.asm["cubin"])
    shared, registers = compiled.metadata.shared, usage["REG"]
    warps = _NVIDIA_REGISTERS // (max(8, math.ceil(registers / 8) * 8) * machine.lanes)
    if shared:
        warps = min(warps, machine.shared_bytes // shared * num_warps)
    ptx = compiled.asm["ptx"]
    return {
        "registers": registers,
        "spills": usage["LOCAL"],
        "scratch_bytes": usage["STACK"],
        "shared_bytes": shared,
        "matrix_instructions": len(re.findall(r"wgmma\.mma_async|\bmma\.sync", ptx)),
        "waves": min(16, warps // 4),
    }


def _resource_usage(cubin: bytes) -> dict[str, int]:
    tool = Path(_triton().__file__ or "").parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
