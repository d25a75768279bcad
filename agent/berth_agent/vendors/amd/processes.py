"""Which processes compute on the cards, and how much memory they use, by one of two sources.

Everybody may read which processes have opened KFD. KFD also has their memory by its own number of each card, and only a
privileged agent can read which card has which number. The files that describe the open device nodes of a process have
the memory by PCI address, and need the capability SYS_PTRACE.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from berth_agent.readings import Process
from berth_agent.vendors.amd.attributes import Attributes
from berth_agent.vendors.amd.cards import Card

Source = Literal["none", "kfd", "fdinfo"]
PROCESSES: Final = Path("class/kfd/kfd/proc")
UNKNOWN: Final = "the processes that use cards are not read: set --amd-processes in an agent with the right for it"
UNNUMBERED: Final = "the processes that use cards are not read: only a privileged agent can read KFD's numbers of cards"
REFUSED: Final = "files of processes that use cards are refused: the agent needs the capability SYS_PTRACE"
NO_KFD: Final = "the processes that use cards are not read: KFD does not list them"
UNREAD: Final = "not all processes that use cards are read: KFD's files of some are refused"
PARTITIONED: Final = "the processes that use partitions are not read: their files name the card alone"
_PID: Final = re.compile(r"[1-9][0-9]{0,9}")
_NODE: Final = re.compile(r"(card|renderD)[0-9]{1,6}")
_FACT: Final = re.compile(r"^(drm-[a-z-]+):[ \t]*(\S{1,64})(?: (KiB|MiB|GiB))?$", re.MULTILINE)
_AMOUNT: Final = re.compile(r"[0-9]{1,15}")
_UNITS: Final = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Listed(NamedTuple):
    """What a source lists."""

    by_minor: Mapping[int, tuple[Process, ...]]
    problem: str = ""
    """What it does not list, and why; empty if it lists everything."""


def read(source: Source, cards: Sequence[Card], *, sysfs_root: Path, proc_root: Path) -> Listed:
    """Return the processes of these cards."""
    if source != "none" and not (sysfs_root / PROCESSES).is_dir():
        return Listed({}, NO_KFD)
    match source:
        case "none":
            return Listed({}, UNKNOWN)
        case "kfd":
            return _by_kfd(cards, sysfs_root)
        case "fdinfo":
            return _by_fdinfo(cards, sysfs_root, proc_root)


def _by_kfd(cards: Sequence[Card], sysfs_root: Path) -> Listed:
    numbered = {card.minor: card.kfd_id for card in cards if card.kfd_id}
    # Without a memory, here and below: what a process used before is not what it uses now.
    attributes = Attributes()
    listed: defaultdict[int, list[Process]] = defaultdict(list)
    for pid in _pids(attributes, sysfs_root) if numbered else ():
        folder = sysfs_root / PROCESSES / pid
        queues = {attributes.number(folder / "queues" / name / "gpuid") for name in attributes.names(folder / "queues")}
        for minor, kfd_id in numbered.items():
            # KFD has the file for each card that the process might use.
            memory = max(attributes.number(folder / f"vram_{kfd_id}") or 0, 0)
            if memory or kfd_id in queues:
                listed[minor].append(Process(pid=int(pid), memory=memory))
    problem = UNNUMBERED if len(numbered) < len(cards) else UNREAD if attributes.refused else ""
    return Listed({minor: tuple(listed[minor]) for minor in numbered}, problem)


def _by_fdinfo(cards: Sequence[Card], sysfs_root: Path, proc_root: Path) -> Listed:
    minors = {card.address: card.minor for card in cards if not card.is_partition}
    listed: defaultdict[int, list[Process]] = defaultdict(list)
    attributes = Attributes()
    # A client is an open device node, which processes may share and a process may have twice.
    clients: set[tuple[str, str]] = set()
    for pid in _pids(attributes, sysfs_root):
        memory: Counter[int] = Counter()
        for facts in _clients(attributes, proc_root / pid):
            client = facts.get("drm-pdev", ("", ""))[0], facts.get("drm-client-id", ("", ""))[0]
            if client[0] in minors and client not in clients:
                clients.add(client)
                amount, unit = facts.get("drm-memory-vram") or facts.get("drm-resident-vram") or ("0", "")
                memory[minors[client[0]]] += int(amount) * _UNITS[unit] if _AMOUNT.fullmatch(amount) else 0
        for minor, used in memory.items():
            if used:
                listed[minor].append(Process(pid=int(pid), memory=used))
    problem = PARTITIONED if len(minors) < len(cards) else REFUSED if attributes.refused else ""
    return Listed({minor: tuple(listed[minor]) for minor in minors.values()}, problem)


def _pids(attributes: Attributes, sysfs_root: Path) -> list[str]:
    return [name for name in attributes.names(sysfs_root / PROCESSES) if _PID.fullmatch(name)]


def _clients(attributes: Attributes, process: Path) -> Iterator[Mapping[str, tuple[str, str]]]:
    """Yield the facts of each device node for graphics that a process has open: (value, unit) by name."""
    for name in attributes.names(process / "fd"):
        if _NODE.fullmatch(attributes.target(process / "fd" / name)):
            facts = _FACT.findall(attributes.text(process / "fdinfo" / name))
            yield {key: (value, unit) for key, value, unit in facts}
