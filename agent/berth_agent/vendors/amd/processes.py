"""Which processes compute on the cards, and how much memory they use, by one of two sources.

Everybody may read which processes have opened KFD. KFD also has their memory by its own number of each card, and only a
privileged agent can read which card has which number. The files that describe the open device nodes of a process have
the memory by PCI address, and need the capability SYS_PTRACE.

Tenants decide how many processes and files there are. So one round reads a bounded number, and what it omits is said.
"""

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from berth_agent.readings import Process
from berth_agent.vendors.amd.attributes import MAX_ENTRIES, Attributes
from berth_agent.vendors.amd.cards import Card

Source = Literal["kfd", "fdinfo"]
PROCESSES: Final = Path("class/kfd/kfd/proc")
FILES_OF_PROCESS: Final = 4096
"""Open files, or queues, of one process that are looked at."""
FILES_OF_ROUND: Final = 16384
"""Files of all processes that are looked at in one round."""
HOSTS_PIDS: Final = "pid:[4026531836]"
"""The first PID namespace, whose number is fixed in the kernel's interface. KFD lists processes by their numbers in
it."""
UNKNOWN: Final = "the processes that use cards are not read: set --amd-processes in an agent with the right for it"
UNNUMBERED: Final = "the processes that use cards are not read: only a privileged agent can read KFD's numbers of cards"
REFUSED: Final = "files of processes that use cards are refused: the agent needs the capability SYS_PTRACE"
NO_KFD: Final = "the processes that use cards are not read: KFD does not list them"
NO_HOST_PIDS: Final = "the processes that use cards are not read: the agent does not see the host's processes (hostPID)"
UNREAD: Final = "not all processes that use cards are read: KFD's files of some are refused"
PARTITIONED: Final = "the processes that use partitions are not read: their files name the card alone"
MANY: Final = f"not all processes that use cards are read: KFD lists {MAX_ENTRIES} or more"
_PID: Final = re.compile(r"[1-9][0-9]{0,9}")
_FACT: Final = re.compile(r"^(drm-[a-z-]+):[ \t]*(\S{1,64})(?: (KiB|MiB|GiB))?$", re.MULTILINE)
_AMOUNT: Final = re.compile(r"[0-9]{1,15}")
_UNITS: Final = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Listed(NamedTuple):
    """What a source lists."""

    by_minor: Mapping[int, tuple[Process, ...]] | None
    """None if it is not known yet."""
    problem: str = ""
    """What it does not list, and why; empty if it lists everything."""
    omitted: frozenset[int] = frozenset()
    """Numbers of processes that have KFD open and were not, or not wholly, looked at."""


NONE: Final = Listed({}, UNKNOWN)
"""What is listed without a source."""
UNUSED: Final = Listed({}, "the processes that use cards are not read: --amd-processes needs --foreign and --truth")
"""What is listed if no use of cards is published."""


class Round:
    """One look at all processes, and what of them was not read. Only its number is left of the round before."""

    def __init__(self, sysfs_root: Path, *, number: int = 0) -> None:
        self.attributes = Attributes()
        self.is_refused = False
        self._left = FILES_OF_ROUND
        self._large: list[str] = []
        """Processes with more files than are looked at."""
        self._late: list[str] = []
        """Processes for which no files were left."""
        names = self.attributes.names(sysfs_root / PROCESSES)
        pids = [name for name in names if _PID.fullmatch(name)]
        # Each round begins with another process, so that the same ones are not always omitted.
        start = number % len(pids) if pids else 0
        self._pids = pids[start:] + pids[:start]
        self._is_full = len(names) == MAX_ENTRIES

    def pids(self, files: int) -> Iterator[str]:
        """Yield the processes that have KFD open, until the round is full.

        Args:
            files: of each process that are read besides its `entries`.
        """
        for pid in self._pids:
            if self._left < files:
                self._late.append(pid)
            else:
                self._left -= files
                yield pid

    def reader(self) -> Attributes:
        """Return a reader for one file. It keeps no texts of others, which a tenant's lock lines can make long."""
        self.is_refused |= bool(self.attributes.refused)
        self.attributes = Attributes()
        return self.attributes

    def entries(self, pid: str, folder: Path) -> list[str]:
        """Return the names in a folder of a process, up to the bounds; none of a process that ended."""
        limit = min(FILES_OF_PROCESS, self._left)
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in itertools.islice(entries, limit + 1)]
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            return []
        except OSError:
            self.is_refused = True
            return []
        if len(names) > limit:
            (self._large if limit == FILES_OF_PROCESS else self._late).append(pid)
        del names[limit:]
        self._left -= len(names)
        return names

    @property
    def omitted(self) -> frozenset[int]:
        """Return the numbers of the processes that were not, or not wholly, looked at."""
        return frozenset(int(pid) for pid in (*self._large, *self._late))

    def problem(self, refused: str) -> str:
        """Return what was not read; the text for files that are refused is the source's."""
        problems = []
        if self._large:
            problems.append(f"process {self._large[0]} has more than {FILES_OF_PROCESS} files")
        if self._late:
            others = f" and {len(self._late) - 1} more" if len(self._late) > 1 else ""
            problems.append(f"the round's {FILES_OF_ROUND} files were used up before process {self._late[0]}{others}")
        if problems:
            return f"not all processes that use cards are read: {'; '.join(problems)}"
        if self._is_full:
            return MANY
        return refused if self.is_refused or self.attributes.refused else ""


def read(source: Source, cards: Sequence[Card], *, sysfs_root: Path, proc_root: Path, numbers: Iterator[int]) -> Listed:
    """Return the processes of these cards, by one round, which takes the next of the numbers."""
    if not (sysfs_root / PROCESSES).is_dir():
        return Listed({}, NO_KFD)
    if not _sees_hosts_processes(proc_root):
        # The numbers are of other processes than those that compute.
        return Listed({}, NO_HOST_PIDS)
    round_ = Round(sysfs_root, number=next(numbers))
    return _by_kfd(cards, sysfs_root, round_) if source == "kfd" else _by_fdinfo(cards, proc_root, round_)


def _sees_hosts_processes(proc_root: Path) -> bool:
    try:
        return str((proc_root / "self/ns/pid").readlink()) == HOSTS_PIDS
    except OSError:
        return False


def _by_kfd(cards: Sequence[Card], sysfs_root: Path, round_: Round) -> Listed:
    numbered = {card.minor: card.kfd_id for card in cards if card.kfd_id}
    listed: defaultdict[int, list[Process]] = defaultdict(list)
    # The memory of all processes first: a tenant chooses how many queues it has.
    memory = {
        # KFD has the file for each card that the process might use.
        pid: {
            minor: max(round_.reader().number(sysfs_root / PROCESSES / pid / f"vram_{kfd_id}") or 0, 0)
            for minor, kfd_id in numbered.items()
        }
        for pid in (round_.pids(files=len(numbered)) if numbered else ())
    }
    for pid, used in memory.items():
        folder = sysfs_root / PROCESSES / pid / "queues"
        names = () if all(used.values()) else round_.entries(pid, folder)
        queues = {round_.reader().number(folder / name / "gpuid") for name in names}
        for minor, kfd_id in numbered.items():
            if used[minor] or kfd_id in queues:
                listed[minor].append(Process(pid=int(pid), memory=used[minor]))
    problem = UNNUMBERED if len(numbered) < len(cards) else round_.problem(UNREAD)
    return Listed({minor: tuple(listed[minor]) for minor in numbered}, problem, round_.omitted)


def _by_fdinfo(cards: Sequence[Card], proc_root: Path, round_: Round) -> Listed:
    minors = {card.address: card.minor for card in cards if not card.is_partition}
    listed: defaultdict[int, list[Process]] = defaultdict(list)
    # A client is an open device node, which processes may share and a process may have twice.
    clients: set[tuple[str, str]] = set()
    for pid in round_.pids(files=1):
        memory: Counter[int] = Counter()
        for facts in _clients(round_, pid, proc_root / pid):
            client = facts.get("drm-pdev", ("", ""))[0], facts.get("drm-client-id", ("", ""))[0]
            if client[0] in minors and client not in clients:
                clients.add(client)
                amount, unit = facts.get("drm-memory-vram") or facts.get("drm-resident-vram") or ("0", "")
                memory[minors[client[0]]] += int(amount) * _UNITS[unit] if _AMOUNT.fullmatch(amount) else 0
        for minor, used in memory.items():
            if used:
                listed[minor].append(Process(pid=int(pid), memory=used))
    problem = PARTITIONED if len(minors) < len(cards) else round_.problem(REFUSED)
    return Listed({minor: tuple(listed[minor]) for minor in minors.values()}, problem, round_.omitted)


def _clients(round_: Round, pid: str, process: Path) -> Iterator[Mapping[str, tuple[str, str]]]:
    """Yield the facts of each device node for graphics that a process has open: (value, unit) by name."""
    for name in round_.entries(pid, process / "fd"):
        try:
            # A tenant chooses the path of its device nodes, and may delete them. What the driver writes, it cannot
            # choose. Sockets, pipes and the like have no path, and are most of the files.
            has_path = os.readlink(f"{process}/fd/{name}").startswith("/")  # noqa: PTH115 - ten times as fast
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            round_.is_refused = True
            continue
        if has_path:
            facts = _FACT.findall(round_.reader().text(process / "fdinfo" / name))
            yield {key: (value, unit) for key, value, unit in facts}
