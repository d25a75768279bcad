"""Reads all cards of the node. A card that fails is listed as unhealthy, and never hides the others.

What a failing card no longer tells (its UUID, minor and model) is remembered from the last time that it could.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from berth_agent.conditions import Finding, unhealthy
from berth_agent.inventory import Reading, labels_of
from berth_agent.nvml import library, sysfs
from berth_agent.nvml.library import Handle, NvmlError
from berth_agent.nvml.links import Node, links, wires
from berth_api import names, quantity
from berth_api.device import DeviceInfo, DeviceSpec, Mig, MigInstance, MigStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    index: int
    error: NvmlError


class Reader:
    """Reads cards, and remembers what they were; for use in the thread that owns NVML."""

    def __init__(self, *, sysfs_root: Path, mig_strategy: MigStrategy) -> None:
        self._sysfs = sysfs_root
        self._mig_strategy = mig_strategy
        self._known: dict[int, DeviceInfo] = {}

    def read(self) -> Reading:
        """Look at all cards.

        Raises:
            NvmlError: the driver does not answer at all.
        """
        looks = [self._look(index) for index in range(library.cards())]
        sound = {index: look for index, look in enumerate(looks) if not isinstance(look, _Failed)}
        cards = self._with_links(sound)
        failed = [look for look in looks if isinstance(look, _Failed)]
        remembered = [self._remembered(look, alive=list(cards.values())) for look in failed]
        listed = [*cards.values(), *(card for card in remembered if card)]
        self._known = {index: self._known[index] for index in range(len(looks)) if index in self._known} | cards
        unread = [look for look, card in zip(failed, remembered, strict=True) if card is None]
        return self._reading(sorted(listed, key=lambda card: card.minor), unread=unread)

    def _look(self, index: int) -> "tuple[DeviceInfo, Node] | _Failed":
        try:
            handle = library.card(index)
            card = self._card(handle)
            place = Node(handle=handle, minor=card.minor, bus_id=library.bus_id(handle), wires=wires(handle))
        except NvmlError as error:
            if error.lost_session:
                raise
            return _Failed(index=index, error=error)
        return card, place

    def _reading(self, cards: list[DeviceInfo], *, unread: Sequence[_Failed]) -> Reading:
        spec = DeviceSpec(
            driver_version=library.driver_version(),
            cuda_version=library.cuda_version(),
            mig_strategy=self._mig_strategy,
            devices=cards,
        )
        loaded = Finding(type=names.DRIVER_LOADED, ok=True, reason="DriverLoaded")
        return Reading(spec=spec, findings=(loaded, _read_finding(unread)), labels=labels_of(spec))

    def _card(self, handle: Handle) -> DeviceInfo:
        card = DeviceInfo(
            type="gpu",
            minor=library.minor(handle),
            id=library.uuid(handle),
            module_id=library.unless_unsupported(default=-1, function=library.module_id, of=(handle,)),
            health=True,
            model=library.name(handle),
            resources={
                names.PREFIX + names.GPU_CORE: 100,
                names.PREFIX + names.GPU_MEMORY: quantity.format_bytes(library.memory(handle)),
                names.PREFIX + names.GPU_MEMORY_RATIO: 100,
            },
            topology=sysfs.place(self._sysfs, library.bus_id(handle)),
        )
        state = library.unless_unsupported(default=None, function=_mig, of=(handle,))
        return card.model_copy(update={"mig": state}) if state else card

    def _with_links(self, sound: "dict[int, tuple[DeviceInfo, Node]]") -> dict[int, DeviceInfo]:
        nodes = [node for _, node in sound.values()]
        return {index: card.model_copy(update={"links": links(node, nodes)}) for index, (card, node) in sound.items()}

    def _remembered(self, failed: _Failed, *, alive: Sequence[DeviceInfo]) -> DeviceInfo | None:
        """Return what the card at this index was, unless that card now answers at another index."""
        card = self._known.get(failed.index)
        if card is None or card.id in {other.id for other in alive}:
            return None
        return unhealthy(card, reason=failed.error.reason, message=str(failed.error))


def _mig(handle: Handle) -> Mig:
    enabled = library.mig_enabled(handle)
    facts = [library.mig_facts(device) for device in library.mig_devices(handle)] if enabled else []
    return Mig(
        enabled=enabled,
        instances=[
            MigInstance(
                id=fact.uuid,
                profile=fact.profile,
                gpu_instance=fact.gpu_instance,
                compute_instance=fact.compute_instance,
                memory=quantity.format_bytes(fact.memory),
            )
            for fact in facts
        ],
    )


def _read_finding(unread: Sequence[_Failed]) -> Finding:
    if not unread:
        return Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead")
    told = "; ".join(f"card {look.index}: {look.error}" for look in unread)
    return Finding(
        type=names.INVENTORY_READ,
        ok=False,
        reason="CardsUnread",
        message=f"cards that never answered this agent are not listed: {told}",
    )
