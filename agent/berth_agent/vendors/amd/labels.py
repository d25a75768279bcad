"""Labels of the Device, and of the Node: those of AMD's node labeller that need no privilege.

AMD's labeller counts cards in the values of older labels (`beta.amd.com/`), which are left out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from berth_agent.inventory.interface import label_value
from berth_agent.readings import NodeFacts
from berth_api import names
from berth_api.device import DeviceSpec
from berth_api.resources import quantity

VENDOR: Final = "amd"
PREFIX: Final = "amd.com/gpu."
MODE: Final = "amd.com/gpu.compute-memory-partition"
"""Label of a card that can be partitioned: its modes, `cpx_nps4`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdFacts(NodeFacts):
    """Facts of a node with AMD's cards: `cards` has the device id (`740f`) of each."""

    source_version: str = ""
    """Of the driver."""

    def labels(self, spec: DeviceSpec, *, renamed: bool) -> dict[str, str]:  # noqa: ARG002 - cards have no replicas
        """Return the Node's labels; none if it has no GPU. If the cards differ, they are those of the most cards."""
        gpus = [device for device in spec.devices if device.type == names.GPU]
        if not gpus:
            return {}
        memory = quantity.parse(gpus[0].resources.get(names.PREFIX + names.GPU_MEMORY, 0))
        modes = {device.labels.get(MODE, "") for device in gpus}
        values = {
            "device-id": _most([str(self.cards.get(device.id, "")) for device in gpus]),
            "product-name": label_value(_most([device.model for device in gpus]).replace(" ", "_")),
            "vram": f"{round(memory / 2**30)}G" if memory else "",
            "cu-count": str(gpus[0].multiprocessors or ""),
            "driver-version": label_value(spec.driver_version),
            "driver-src-version": label_value(self.source_version),
            "compute-memory-partition": modes.pop() if len(modes) == 1 else "",
            "compute-partitioning-supported": str(any(MODE in device.labels for device in gpus)).lower(),
        }
        return {PREFIX + name: value for name, value in values.items() if value}


def labels_of(spec: DeviceSpec) -> dict[str, str]:
    """Return the Device's labels for vendor, model and driver. A node with cards of several models has no model."""
    models = {device.model for device in spec.devices if device.type == names.GPU}
    if not models:
        return {}
    labels = {
        names.VENDOR_LABEL: VENDOR,
        names.MODEL_LABEL: label_value(models.pop().removeprefix("AMD ") if len(models) == 1 else ""),
        names.DRIVER_LABEL: label_value(spec.driver_version),
    }
    return {key: value for key, value in labels.items() if value}


def _most(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]
