"""The agent's reading of the machine that it runs on, in nvidia-smi's terms: `python -m tests.gpu.look`.

It is a program, because a process can load only one libnvidia-ml, and other tests may have loaded the fixture.
BERTH_AGENT_NVML_LIBRARY and BERTH_AGENT_SYSFS_ROOT redirect it, as they redirect the agent.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from berth_agent.configuration.settings import Settings
from berth_agent.health.faults import faults_of
from berth_agent.readings import CardSample, Reading
from berth_agent.usage.processes import foreign
from berth_agent.vendors.nvidia.hand_over.resources import indices
from berth_agent.vendors.nvidia.nvml.inventory import NvmlInventory
from berth_api import names
from berth_api.device import DeviceInfo, Link
from berth_api.resources import quantity
from tests.gpu import measured
from tests.gpu.measured import Measured
from tests.gpu.smi import MACHINE, Facts

ROOT: Final = Path(__file__).parents[2]
NODE: Final = "here"
PATIENCE: Final = 120
"""Longest time in seconds of a reading, including the start of Python."""
WORDS: Final = {
    "SameBoard": "PSB",
    "SingleSwitch": "PIX",
    "MultiSwitch": "PXB",
    "HostBridge": "PHB",
    "SameNUMANode": "NODE",
    "System": "SYS",
}
"""Links over PCIe as `nvidia-smi topo -m` calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of one reading."""

    facts: Facts
    processes: dict[str, list[int]]
    """Process ids, by the UUIDs of the cards that they compute on."""
    foreign: list[str]
    """UUIDs of the cards that the agent would report as used by processes outside pods."""
    measured: Measured
    """What the cards measured just after the reading."""


def look() -> Look:
    """Read in a separate process."""
    command = [sys.executable, "-m", "tests.gpu.look"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    # The agent's log lines come before the result.
    return Look(**json.loads(done.stdout.splitlines()[-1]))


def facts(reading: Reading) -> Facts:
    """Return a reading in nvidia-smi's terms."""
    troubles = [f"{each.type}: {each.reason} {each.message}" for each in reading.findings if not each.ok]
    machine = {
        "driver_version": reading.spec.driver_version,
        "cuda_version": reading.spec.cuda_version,
        "troubles": "; ".join(troubles),
    }
    indices_by_id = indices(reading.spec)
    indices_by_minor = {each.minor: indices_by_id[each.id] for each in reading.spec.devices}
    return {MACHINE: machine} | {
        each.id: _card(each, reading) | {"index": indices_by_id[each.id]} | _links(each, indices_by_minor)
        for each in reading.spec.devices
    }


def _card(card: DeviceInfo, reading: Reading) -> dict[str, str]:
    assert card.topology is not None
    assert reading.facts is not None
    compute = reading.facts.cards[card.id].compute
    node = card.topology.node_id
    return {
        "name": card.model,
        "pci.bus_id": smi_address(card.topology.bus_id),
        "memory.total": str(quantity.parse(card.resources[names.PREFIX + names.GPU_MEMORY]) >> 20),
        "compute_cap": ".".join(map(str, compute)),
        "mig.mode.current": "N/A" if card.mig is None else "Enabled" if card.mig.enabled else "Disabled",
        "minor_number": str(card.minor),
        "numa": str(node) if node >= 0 else "N/A",
        "faults": " ".join(sorted(fault.kind for fault in faults_of(card))),
        **_instances(card),
    }


def smi_address(address: str) -> str:
    """Convert the kernel's `0000:3b:00.0` to nvidia-smi's `00000000:3B:00.0`."""
    domain, _, rest = address.partition(":")
    return f"{domain:0>8}:{rest}".upper()


def _instances(card: DeviceInfo) -> dict[str, str]:
    instances = card.mig.instances if card.mig else []
    return {f"mig {each.id}": f"{each.profile} {each.gpu_instance}/{each.compute_instance}" for each in instances}


def _links(card: DeviceInfo, indices_by_minor: dict[int, str]) -> dict[str, str]:
    ways = {f"link GPU{indices_by_minor[each.minor]}": word(each) for each in card.links}
    peers = {f"peer GPU{indices_by_minor[each.minor]}": "OK" if each.peer_to_peer else "no" for each in card.links}
    return ways | peers


def word(link: Link) -> str:
    """Return the name of a link in `nvidia-smi topo -m`."""
    return f"NV{link.count}" if link.type == "NVLink" else WORDS[link.type]


async def _read() -> tuple[Reading, Mapping[str, CardSample]]:
    inventory = NvmlInventory(Settings(node_name=NODE))
    reading = (await inventory.read())[NODE]
    samples = await inventory.sample()
    inventory.close()
    return reading, samples


def _as_json(reading: Reading, samples: Mapping[str, CardSample]) -> dict[str, Any]:
    cards = {each.minor: each.id for each in reading.spec.devices}
    strangers = foreign(reading.processes or {}, Path("/proc"))
    return {
        "facts": facts(reading),
        "processes": {cards[minor]: [each.pid for each in found] for minor, found in (reading.processes or {}).items()},
        "foreign": [cards[each.minor] for each in strangers],
        "measured": measured.of_samples(samples),
    }


if __name__ == "__main__":
    print(json.dumps(_as_json(*asyncio.run(_read()))))  # noqa: T201 -- its result
