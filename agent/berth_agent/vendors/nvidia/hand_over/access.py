"""How containers get NVIDIA's cards, and how kubelet is offered them: the parts of the hand-over together."""

import uuid
from collections.abc import Sequence

import structlog

from berth_agent.configuration import options
from berth_agent.configuration.options import Options
from berth_agent.configuration.settings import Settings
from berth_agent.inventory import sysfs
from berth_agent.kubelet.device_plugin import preferred
from berth_agent.kubelet_api.deviceplugin_pb2 import ContainerAllocateResponse
from berth_agent.vendor import MisconfiguredError, Offer, Offers, Specification
from berth_agent.vendors.nvidia.hand_over import cdi, device_nodes, resources, response
from berth_agent.vendors.nvidia.hand_over.device_nodes import DeviceNodes
from berth_agent.vendors.nvidia.hand_over.response import AllocationContext
from berth_agent.vendors.nvidia.nvml.inventory import DRIVER
from berth_api.device import DeviceSpec

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NvidiaAccess(AllocationContext):
    """How containers get the cards of one reading."""

    @property
    def one_at_most(self) -> bool:
        """Return whether a container may have one replica only."""
        return self.options.sharing.one_at_most

    def check(self) -> None:
        """Check that the IMEX channels exist that containers must have, and that the indices of cards are known.

        Raises:
            MissingDeviceNodeError: a channel does not exist.
            MisconfiguredError: others would take an index for another card's.
        """
        flags = self.options.flags
        is_own = flags.by_cdi_only and self.vendor == response.OWN_VENDOR
        if flags.device_id_strategy == "index" and not is_own and self.unlisted:
            raise MisconfiguredError(
                f"--device-id-strategy=index: the driver holds {', '.join(sorted(self.unlisted))}, which the agent "
                "cannot read, so the indices of the other cards are unknown; repair the card, or set "
                "--device-id-strategy=uuid"
            )
        device_nodes.check(self.nodes, channels=flags.imex_channel_ids if flags.imex_required else ())

    def cdi(self) -> dict[str, Specification]:
        """Return the CDI specifications by their classes."""
        return cdi.specifications(self)

    def prefer(self, offer: Offer, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Return the units that fit best together.

        Raises:
            PreferenceError: there are too few.
        """
        policy = self.options.flags.shared_devices_allocation_policy
        return preferred.prefer(self.spec, offer, available, must_include, size, policy=policy)

    def grant(self, ids: Sequence[str]) -> ContainerAllocateResponse:
        """Return how a container gets these units."""
        return response.compose(self, ids, key=str(uuid.uuid4()))


class NvidiaHandOver:
    """Offers the cards as the options of NVIDIA's plugin say.

    Raises:
        OptionsError: the configuration file cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._options = _loaded(settings)
        self._lacks_uvm = False

    @property
    def fails_without_cards(self) -> bool:
        """Return whether the agent ends if there is nothing to offer at its start."""
        return self._options.flags.fail_on_init_error

    @property
    def renames(self) -> bool:
        """Return whether replicas of cards are a resource of their own."""
        return self._options.sharing.rename

    def reload(self) -> None:
        """Read the configuration file again.

        Raises:
            OptionsError: it cannot be used; the last options stay.
        """
        self._options = _loaded(self._settings)

    def offers(self, spec: DeviceSpec, *, withheld: frozenset[str] = frozenset()) -> Offers:
        """Return what a node offers.

        Raises:
            LayoutError: the cards contradict the MIG strategy `single`.
        """
        return resources.offers(spec, self._options, withheld=withheld)

    def shown(self, spec: DeviceSpec) -> DeviceSpec:
        """Return the spec with the MIG strategy and the replicas with which its cards are offered."""
        return resources.shown(spec, self._options)

    def access(self, spec: DeviceSpec) -> NvidiaAccess:
        """Return how containers get these cards, by the device nodes that exist now."""
        listed = {card.topology.bus_id for card in spec.devices if card.topology}
        writes_cdi = self._settings.cdi_specification == "own"
        nodes = device_nodes.read(dev=self._settings.dev_folder, proc=self._settings.proc_root)
        self._log_uvm(spec, nodes)
        return NvidiaAccess(
            spec=spec,
            options=self._options,
            nodes=nodes,
            vendor=response.OWN_VENDOR if writes_cdi else cdi.NVIDIA_CTK_VENDOR,
            unlisted=sysfs.bound_cards(self._settings.sysfs_root, DRIVER) - listed if listed else frozenset(),
        )

    def _log_uvm(self, spec: DeviceSpec, nodes: DeviceNodes) -> None:
        """Log that CUDA finds no card in containers that start now: some cards have no UVM, so they are given."""
        lacks_uvm = any(device.type == "gpu" for device in spec.devices) and device_nodes.UVM not in nodes.control
        if lacks_uvm and not self._lacks_uvm:
            _log.warning(
                "the kernel module nvidia-uvm is not loaded: containers get no /dev/nvidia-uvm, which CUDA needs; "
                "load it with `nvidia-modprobe -u`, or at boot"
            )
        self._lacks_uvm = lacks_uvm


def _loaded(settings: Settings) -> Options:
    loaded = options.load(settings)
    for warning in loaded.warnings:
        _log.warning("configuration", warning=warning)
    return loaded
