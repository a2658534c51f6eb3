"""Writes a complete job script for a cluster; nothing is started.

    python -m zaya_jax.systems.launch --render slurm --nodes 16 -- \\
        python -m experiments.pretrain --config experiments/configs/zaya1_8b.py:pretrain1 \\
        --workdir /scratch/run

One process a node, which drives all of its devices: the well-trodden way on AMD machines. Each
line of the environment says what it is for. The settings were gathered from AMD's published
training stacks; none has been tried on a cluster here.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.config import ConfigError
from zaya_jax.systems.command import make_parser
from zaya_jax.systems.hardware import hardware_names, load_hardware

_PORT = 8476


class Variable(NamedTuple):
    """One line of a job's environment."""

    name: str
    value: str
    why: str


_XLA_ROCM = (
    ("--xla_gpu_enable_latency_hiding_scheduler=true", "exchanges run beside products"),
    ("--xla_gpu_enable_command_buffer=", "HIP graphs crash with loops on some versions"),
    ("--xla_gpu_enable_triton_gemm=false", "hipBLASLt is quicker"),
    ("--xla_gpu_enable_cublaslt=true", "which means hipBLASLt on ROCm"),
    ("--xla_gpu_autotune_level=4", "level 0 takes kernels that overflow on fine-grained experts"),
    ("--xla_gpu_memory_limit_slop_factor=95", "leaves less memory unused"),
    ("--xla_gpu_all_gather_combine_threshold_bytes=8589934592", "few large exchanges"),
    ("--xla_gpu_reduce_scatter_combine_threshold_bytes=8589934592", "the same for gradients"),
)
_ROCM = (
    Variable("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9", "leaves room for RCCL and hipBLASLt"),
    Variable("GPU_MAX_HW_QUEUES", "2", "streams share few queues, so exchanges are not starved"),
    Variable("HIP_FORCE_DEV_KERNARG", "1", "kernel arguments in device memory: quicker launches"),
    Variable("HSA_FORCE_FINE_GRAIN_PCIE", "1", "network cards and devices see each other's writes"),
)
_BY_HARDWARE = {
    "mi300x": (
        Variable("HSA_NO_SCRATCH_RECLAIM", "1", "each collective would pay for reclaiming"),
    ),
    "mi350": (
        Variable("RCCL_WARP_SPEED_AUTO", "0", "else losses can become NaN"),
        Variable("AMD_COMGR_NAMESPACE", "1", "else devices take minutes to start"),
    ),
}
_POLLARA = (
    Variable(
        "NCCL_IB_HCA",
        "ionic_0,ionic_1,ionic_2,ionic_3,ionic_4,ionic_5,ionic_6,ionic_7",
        "one card for each device; the data network is left out",
    ),
    Variable("NCCL_IB_GID_INDEX", "1", "RoCE v2 addresses"),
    Variable("NCCL_IB_TC", "104", "traffic class of data"),
    Variable("NCCL_IB_FIFO_TC", "192", "traffic class of control messages"),
    Variable("NCCL_IB_QPS_PER_CONNECTION", "1", "as the cards want it"),
    Variable("NCCL_IB_RETRY_CNT", "20", "survives a link that flaps"),
    Variable("NCCL_IB_TIMEOUT", "300", "the same"),
    Variable("NCCL_PXN_DISABLE", "0", "messages reach the card of the right rail inside the node"),
    Variable("NCCL_MAX_P2P_CHANNELS", "56", "enough channels for all-to-all"),
    Variable("NCCL_GDR_FLUSH_DISABLE", "1", "not needed with these cards"),
    Variable("NCCL_DMABUF_ENABLE", "0", "peer memory through the driver instead"),
)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments, command = _parse(argv)
    render = {"slurm": slurm_script, "k8s": kubernetes_manifest}[arguments.render]
    print(render(arguments, command), end="")
    return 0


def environment(hardware: str, network: str) -> list[Variable]:
    """Variables of a node, in the order of the script; XLA's flags are one of them."""
    if hardware not in ("mi300x", "mi350"):
        return [Variable("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9", "leaves room for NCCL")]
    flags = " ".join(flag for flag, _ in _XLA_ROCM)
    reasons = "; ".join(f"{flag.split('=')[0].strip('-')}: {why}" for flag, why in _XLA_ROCM)
    found = [Variable("XLA_FLAGS", flags, reasons), *_ROCM, *_BY_HARDWARE[hardware]]
    return [*found, *(_POLLARA if network == "pollara" else ())]


def slurm_script(settings: argparse.Namespace, command: Sequence[str]) -> str:
    """A batch script. JAX finds the other processes from SLURM's own variables."""
    devices = load_hardware(settings.hardware).devices_per_node
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={settings.name}",
        f"#SBATCH --nodes={settings.nodes}",
        "#SBATCH --ntasks-per-node=1          # one process a node drives all of its devices",
        f"#SBATCH --gpus-per-node={devices}",
        "#SBATCH --exclusive                  # nobody else's traffic on the links",
        f"#SBATCH --time={settings.time}",
        "#SBATCH --requeue                    # a lost node: again, from the last checkpoint",
        "#SBATCH --signal=TERM@120            # two minutes to save before the time is up",
        f"#SBATCH --output={settings.name}-%j.log",
        "set -euo pipefail",
        "",
        "# All devices of the node belong to the one process.",
        "unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES",
        "",
    ]
    for name, value, why in environment(settings.hardware, settings.network):
        lines += [*(f"# {part}" for part in why.split("; ")), f"export {name}={shlex.quote(value)}"]
    lines += ["", f"srun --kill-on-bad-exit=1 {shlex.join(command)}", ""]
    return "\n".join(lines)


def kubernetes_manifest(settings: argparse.Namespace, command: Sequence[str]) -> str:
    """A headless service and an indexed job; process 0 is the pod of index 0."""
    devices = load_hardware(settings.hardware).devices_per_node
    resource = "nvidia.com/gpu" if settings.hardware == "h200" else "amd.com/gpu"
    name, nodes = settings.name, settings.nodes
    script = f"exec {shlex.join(command)}"
    variables = [
        Variable("JOB_COMPLETIONS", str(nodes), "how many processes there are"),
        Variable("JOB_COORDINATOR", f"{name}-0.{name}:{_PORT}", "where process 0 is found"),
        *environment(settings.hardware, settings.network),
    ]
    rows = []
    for variable, value, why in variables:
        rows += [f"            # {part}" for part in why.split("; ")]
        rows += [f"            - name: {variable}", f"              value: {_quoted(value)}"]
    return "\n".join(
        [
            "apiVersion: v1",
            "kind: Service",
            f"metadata: {{name: {name}}}",
            "spec:",
            "  clusterIP: None  # pods find each other by name",
            "  publishNotReadyAddresses: true  # before they are all up",
            f"  selector: {{job-name: {name}}}",
            "---",
            "apiVersion: batch/v1",
            "kind: Job",
            f"metadata: {{name: {name}}}",
            "spec:",
            f"  completions: {nodes}",
            f"  parallelism: {nodes}",
            "  completionMode: Indexed  # the index is the number of the process",
            "  backoffLimit: 1000  # a lost pod: again, from the last checkpoint",
            "  template:",
            "    spec:",
            f"      subdomain: {name}",
            "      restartPolicy: Never",
            "      terminationGracePeriodSeconds: 120  # to save",
            "      hostNetwork: true  # the network cards of the node",
            "      dnsPolicy: ClusterFirstWithHostNet",
            "      containers:",
            "        - name: train",
            f"          image: {settings.image}",
            f'          command: ["/bin/bash", "-c", {_quoted(script)}]',
            f"          resources: {{limits: {{{resource}: {devices}}}}}",
            "          env:",
            *rows,
            "          volumeMounts: [{name: shared-memory, mountPath: /dev/shm}]",
            "      volumes:",
            "        - name: shared-memory  # RCCL's and NCCL's exchange within the node",
            "          emptyDir: {medium: Memory}",
            "",
        ]
    )


def _quoted(text: str) -> str:
    """A YAML string in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    if "--" not in argv:
        _parser().parse_args(argv)  # --help, or an error about what stands there
        raise ConfigError("give the job after --: launch [options] -- COMMAND")
    at = list(argv).index("--")
    arguments, command = _parser().parse_args(argv[:at]), list(argv[at + 1 :])
    if not command:
        raise ConfigError("nothing stands after --; give the command of the job")
    if arguments.nodes < 1:
        raise ConfigError(f"--nodes={arguments.nodes}: must be at least 1")
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", arguments.name):
        raise ConfigError(f"--name={arguments.name!r}: small letters, digits and - only")
    load_hardware(arguments.hardware)
    return arguments, command


def _parser() -> Parser:
    parser = make_parser(
        "launch",
        "Writes a complete job script for a cluster, with a reason for each line.",
        "--render slurm --nodes 16 -- python -m experiments.pretrain --workdir /scratch/run",
    )
    parser.add_argument("--render", required=True, choices=("slurm", "k8s"))
    parser.add_argument("--nodes", type=int, default=2, metavar="N")
    parser.add_argument("--hardware", default="mi300x", help=", ".join(hardware_names()))
    parser.add_argument("--network", default="pollara", choices=("pollara", "default"))
    parser.add_argument("--name", default="zaya", help="of the job")
    parser.add_argument("--time", default="24:00:00", help="of a SLURM job")
    parser.add_argument("--image", default="IMAGE", help="container of a Kubernetes job")
    return parser


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
