"""Limits by MPS: the annotations of containers, and the daemon's defaults. Pure functions.

The daemon's defaults apply to processes that drop their variables, and no variable raises them. For each card, the
default is the largest limit of a container on the card.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from berth_agent.kubelet.admission.pods import ContainerSpec, Pod
from berth_agent.vendors.nvidia.hand_over import resources
from berth_api.device import DeviceSpec

_LIMIT: Final = re.compile(r"([0-9]{1,3})=([0-9]{1,9})M")
WHOLE: Final = 100
"""Percent of the multiprocessors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultLimits:
    """What the daemon allows to each process."""

    memory: Mapping[int, int] = field(default_factory=dict)
    """The daemon's number of a card -> MiB; a card that no container shares has no limit."""
    threads: int = 0
    """Percent of the multiprocessors; 0 if no container has a limit."""

    def defaults(self) -> Iterator[str]:
        """Return the commands that set them for servers that start later."""
        for card, mebibytes in sorted(self.memory.items()):
            yield f"set_default_device_pinned_mem_limit {card} {mebibytes}M"
        if self.threads:
            yield f"set_default_active_thread_percentage {self.threads}"

    def of_server(self, pid: int) -> Iterator[str]:
        """Return the commands that set them for later clients of a server that runs."""
        for card, mebibytes in sorted(self.memory.items()):
            yield f"set_device_pinned_mem_limit {pid} {card} {mebibytes}M"
        if self.threads:
            yield f"set_active_thread_percentage {pid} {self.threads}"

    def queries(self) -> Iterator[str]:
        """Return the commands whose answer changes with them; the first is answered with the percentage."""
        yield "get_default_active_thread_percentage"
        for card in sorted(self.memory):
            yield f"get_default_device_pinned_mem_limit {card}"


def sharing(pods: Iterable[Pod]) -> Iterator[tuple[Pod, ContainerSpec]]:
    """Return the containers that are limited by MPS, with their pods, unless the pod has ended."""
    for pod in pods:
        if not pod.ended:
            yield from ((pod, container) for container in pod.containers if container.by_mps)


def largest(pods: Iterable[Pod], spec: DeviceSpec) -> DefaultLimits:
    """Return the largest limit on each card, and the largest percentage. An invalid annotation counts as none."""
    # The daemon is started with CUDA_DEVICE_ORDER=PCI_BUS_ID, so its numbers are those of the buses.
    numbers = {card: int(number) for card, number in resources.indices(spec).items() if number.isdecimal()}
    memory: dict[int, int] = {}
    threads = 0
    for _, container in sharing(pods):
        text = container.mps_threads
        if text.isdecimal() and text.isascii() and len(text) <= len(str(WHOLE)) and int(text) <= WHOLE:
            threads = max(threads, int(text))
        for position, mebibytes in memory_limits(container.mps_memory).items():
            card = container.visible[position] if position < len(container.visible) else ""
            if (number := numbers.get(card)) is not None:
                memory[number] = max(memory.get(number, 0), mebibytes)
    return DefaultLimits(memory=memory, threads=threads)


def memory_limits(text: str) -> dict[int, int]:
    """Return the MiB of each card by its position, `{0: 4096}` for `0=4096M`; nothing if the text is invalid."""
    matches = [_LIMIT.fullmatch(part) for part in text.split(",")]
    limits = {int(match[1]): int(match[2]) for match in matches if match}
    return limits if len(limits) == len(matches) and all(limits.values()) else {}
