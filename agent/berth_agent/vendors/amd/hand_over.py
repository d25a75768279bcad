"""How kubelet is offered AMD's cards, and how containers get them: with the names of AMD's device plugin.

A container gets `/dev/kfd`, which all cards share, and the nodes of its cards below `/dev/dri`. The cgroup of the
render node is all that keeps it from other cards.
"""

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from berth_agent.configuration import options
from berth_agent.configuration.options import Flags
from berth_agent.configuration.settings import Settings
from berth_agent.inventory import sysfs
from berth_agent.kubelet.device_plugin import preferred
from berth_agent.kubelet.device_plugin.cdi_folder import VERSION
from berth_agent.kubelet_api.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse
from berth_agent.kubelet_api.deviceplugin_pb2 import DeviceSpec as DeviceNode
from berth_agent.vendor import (
    CDI_VENDOR,
    CardAccess,
    HandOver,
    MisconfiguredError,
    Offer,
    Offers,
    Specification,
    Unit,
    whole_cards,
)
from berth_agent.vendors.amd.cards import FIRST_RENDER
from berth_agent.vendors.amd.labels import MODE
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec

DOMAIN: Final = "amd.com"
GPU: Final = f"{DOMAIN}/gpu"
CDI_KIND: Final = f"{CDI_VENDOR}{DOMAIN}/gpu"
KFD: Final = "/dev/kfd"
PERMISSIONS: Final = "rw"
"""As AMD's plugin."""
VISIBLE: Final = "AMD_VISIBLE_DEVICES"
"""Read by AMD's container runtime alone. ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES are the user's: in a container,
cards are numbered from 0."""
_CARD: Final = re.compile(r"card[0-9]{1,6}")
_UNIQUE: Final = re.compile(r"GPU-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdAccess(CardAccess):
    """How containers get the cards of one reading."""

    spec: DeviceSpec
    flags: Flags
    settings: Settings

    def check(self) -> None:
        """Check that the driver for computing is there, and that the variable can name all cards.

        Raises:
            MisconfiguredError: the driver is not there, or the variable cannot name a card.
        """
        if not (self.settings.sysfs_root / "class/kfd/kfd").exists():
            raise MisconfiguredError(f"{KFD}: not there; load amdgpu in a kernel that was built with HSA_AMD")
        nameless = [card.id for card in _gpus(self.spec) if not _UNIQUE.fullmatch(card.id)]
        if self.settings.amd_visible_devices and nameless:
            raise MisconfiguredError(
                f"{VISIBLE} cannot name {nameless[0]}, which has no unique_id of its own; unset --amd-visible-devices"
            )

    def cdi(self) -> dict[str, Specification]:
        """Return the specification of all cards; none if no container gets them by CDI."""
        if not self.flags.by_cdi:
            return {}
        devices = {card.id: self._nodes(card) for card in _gpus(self.spec)}
        every = [path for paths in devices.values() for path in paths]
        if not every:
            return {}
        entries = {**devices, "all": every}.items()
        listed = [{"name": name, "containerEdits": self._edits(paths)} for name, paths in entries]
        edits = self._edits([KFD])
        return {"gpu": {"cdiVersion": VERSION, "kind": CDI_KIND, "devices": listed, "containerEdits": edits}}

    def prefer(self, offer: Offer, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Return the cards that are connected best with each other.

        Raises:
            PreferenceError: there are too few.
        """
        return preferred.prefer(self.spec, offer, available, must_include, size, policy="distributed")

    def grant(self, ids: Sequence[str]) -> ContainerAllocateResponse:
        """Return how a container gets these cards."""
        cards = {card.id: card for card in _gpus(self.spec)}
        answer = ContainerAllocateResponse()
        qualified = [f"{CDI_KIND}={name}" for name in ids]
        if "cdi-annotations" in self.flags.device_list_strategy:
            # A container runtime reads all annotations with the prefix, so each container needs a key of its own.
            key = f"{self.flags.cdi_annotation_prefix}amd-device-plugin_{uuid.uuid4()}"
            answer.annotations[key] = ",".join(qualified)
        if "cdi-cri" in self.flags.device_list_strategy:
            answer.cdi_devices.extend(CDIDevice(name=name) for name in qualified)
        if not self.flags.by_cdi_only:
            paths = [KFD, *(path for name in ids for path in self._nodes(cards[name]))]
            answer.devices.extend(
                DeviceNode(container_path=path, host_path=self._on_host(path), permissions=PERMISSIONS)
                for path in dict.fromkeys(paths)
            )
        if self.settings.amd_visible_devices:
            answer.envs[VISIBLE] = ",".join(f"0x{name.removeprefix('GPU-')}" for name in ids)
        return answer

    def _edits(self, paths: Iterable[str]) -> dict[str, object]:
        nodes = [{"path": path, "hostPath": self._on_host(path)} for path in dict.fromkeys(paths)]
        return {"deviceNodes": nodes}

    def _on_host(self, path: str) -> str:
        return self.flags.dev_root.rstrip("/") + path

    def _nodes(self, card: DeviceInfo) -> list[str]:
        """Return the device nodes of a card: those that belong to the device with its render node.

        They come from the driver's folder, not from /dev, which the agent need not see.
        """
        render = f"renderD{card.minor + FIRST_RENDER}"
        siblings = sysfs.entries(self.settings.sysfs_root / "class/drm" / render / "device/drm")
        cards = [path.name for path in siblings if _CARD.fullmatch(path.name)]
        return [f"/dev/dri/{name}" for name in (*cards, render)]


class AmdHandOver(HandOver):
    """Offers the cards as AMD's device plugin does.

    Raises:
        OptionsError: the configuration file cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._flags = options.load(settings).flags

    @property
    def fails_without_cards(self) -> bool:
        """Return whether the agent ends if there is nothing to offer at its start."""
        return self._flags.fail_on_init_error

    def reload(self) -> None:
        """Read the configuration file again.

        Raises:
            OptionsError: it cannot be used; the last options stay.
        """
        self._flags = options.load(self._settings).flags

    def offers(self, spec: DeviceSpec, *, withheld: frozenset[str] = frozenset()) -> Offers:
        """Return what a node offers.

        Raises:
            MisconfiguredError: the cards are partitioned differently, and the strategy has one resource for all.
        """
        modes = {card.id: card.labels.get(MODE, "") for card in _gpus(spec)}
        is_single = self._settings.amd_resource_naming_strategy == "single"
        if is_single and len(set(modes.values())) > 1:
            listed = ", ".join(sorted({mode or "none" for mode in modes.values()}))
            raise MisconfiguredError(
                f"the cards have different partition modes: {listed}; partition them alike, or set "
                "--amd-resource-naming-strategy=mixed"
            )
        by_resource: dict[str, list[Unit]] = {}
        for unit in whole_cards(spec, withheld=withheld):
            name = f"{DOMAIN}/{modes[unit.id]}" if modes[unit.id] and not is_single else GPU
            by_resource.setdefault(name, []).append(unit)
        return Offers(offers=tuple(Offer(resource=name, units=tuple(units)) for name, units in by_resource.items()))

    def access(self, spec: DeviceSpec) -> AmdAccess:
        """Return how containers get these cards."""
        return AmdAccess(spec=spec, flags=self._flags, settings=self._settings)


def _gpus(spec: DeviceSpec) -> list[DeviceInfo]:
    return [device for device in spec.devices if device.type == names.GPU]
