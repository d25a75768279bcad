"""Follow the Xids of this machine's cards as the agent does: `python -m tests.gpu.follow`.

It prints `ready`, waits for a line on its input, and prints the Xids since then and the faults of the cards, as JSON.
"""

import asyncio
import json
import sys
from typing import Any

from berth_agent.configuration.settings import Settings
from berth_agent.health.faults import FaultEvent
from berth_agent.vendors.nvidia.nvml.inventory import NvmlInventory
from tests.gpu.look import NODE


async def _follow() -> dict[str, Any]:
    inventory = NvmlInventory(Settings(node_name=NODE))
    faults: list[FaultEvent] = []
    inventory.listen(faults.append)
    await inventory.read()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    reading = (await inventory.read())[NODE]
    xids = [[card, number, count] for (card, number), count in inventory.xids().items()]
    inventory.close()
    return {
        "xids": xids,
        "faults": [each.kind for event in faults for each in event.faults],
        "healthy": [device.id for device in reading.spec.devices if device.health],
    }


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(asyncio.run(_follow()))}\n")
