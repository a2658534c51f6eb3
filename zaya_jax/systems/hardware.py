"""What the planner knows of an accelerator. The numbers and their sources: `hardware.json`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from zaya_jax.config import ConfigError

_FILE = Path(__file__).with_name("hardware.json")


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One device, and the node it stands in."""

    name: str
    memory_gb: float  # 10^9 bytes
    peak_bf16_tflops: float  # dense, from the data sheet
    achieved_bf16_tflops: float  # of a large matrix product, as measured
    peak_hbm_tb_s: float
    achieved_hbm_tb_s: float
    devices_per_node: int
    node_fabric: str  # "mesh": a link between any two devices; "switch": one link into a switch
    link_gb_s: float  # of one link, one way
    achieved_fabric_share: float  # of the links' sum, in large collectives
    nic_gb_s: float  # of one device to other nodes, one way
    gemm_plateau_gflop: float  # work of one product below which devices do not reach their best
    head_dim_multiple: int
    vocab_multiple: int
    compiler: dict[str, Any]  # what XLA asks of a GPU that it compiles for
    sources: dict[str, str]

    @property
    def room_bytes(self) -> int:
        """Memory of one device that a plan may fill: libraries and fragments take the rest."""
        return int(0.9 * self.memory_gb * 1e9)

    def fabric_gb_s(self, devices: int) -> float:
        """Bytes a device can send to the others of a group within a node, 10^9 per second.

        In a mesh a group of n uses n - 1 links of each device; through a switch all of it.
        """
        links = devices - 1 if self.node_fabric == "mesh" else 1
        return links * self.link_gb_s * self.achieved_fabric_share


def load_hardware(name: str) -> Hardware:
    """The accelerator of that name.

    Raises:
      ConfigError: when there are no facts about it.
    """
    known = json.loads(_FILE.read_text())
    if name not in known:
        raise ConfigError(f"--hardware={name!r} is none of: {', '.join(known)}")
    return Hardware(**known[name])


def hardware_names() -> list[str]:
    """The accelerators there are facts about."""
    return list(json.loads(_FILE.read_text()))
