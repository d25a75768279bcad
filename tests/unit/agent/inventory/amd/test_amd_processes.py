"""Which processes use AMD's cards, by KFD and by the open files of processes."""

import asyncio
import errno
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.inventory import sysfs
from berth_agent.readings import Process, Reading
from berth_agent.usage import processes as usage
from berth_agent.vendors.amd import processes
from berth_agent.vendors.amd.attributes import MAX_ENTRIES, Attributes
from berth_agent.vendors.amd.cards import Card
from berth_agent.vendors.amd.cards import read as read_cards
from berth_agent.vendors.amd.inventory import VENDOR, AmdInventory
from berth_agent.vendors.amd.process_rounds import HANGS, NOT_YET, PATIENCE, PERIOD, ProcessRounds
from berth_agent.vendors.amd.processes import Listed
from tests.objects import amd_trees
from tests.objects.amd_trees import GIB, MI300X, AmdTree, refused

FIRST, SECOND = MI300X[0].address, MI300X[1].address


async def read(tree: AmdTree, source: str, **options: Any) -> Reading:
    settings: dict[str, Any] = {"sysfs_root": tree.root, "proc_root": tree.root, "amd_processes": source, **options}
    inventory = AmdInventory(Settings(node_name="n", **settings))
    reading = (await inventory.read())["n"]
    while reading.processes is None:  # the round of a slow machine has not ended
        reading = (await inventory.read())["n"]
    return reading


def used(reading: Reading) -> dict[int, list[tuple[int, int]]]:
    """Return (pid, GiB) of the processes of each card that has some."""
    return {
        minor: [(process.pid, process.memory // GIB) for process in listed]
        for minor, listed in (reading.processes or {}).items()
        if listed
    }


def note(reading: Reading) -> str:
    [finding] = [finding for finding in reading.findings if finding.type == "InventoryRead"]
    assert finding.ok
    return finding.message


def computing(tree: AmdTree) -> AmdTree:
    """Add processes that compute on the first two cards, and one that only has KFD open."""
    tree.process(100, 128, 136, memory={128: 60 * GIB, 136: 2 * GIB})
    tree.process(200, 128, 136, queues=[136])
    tree.process(300, 128, 136)
    # Client 7 is open twice, and a child has inherited it. Client 8 was opened by a node that is gone.
    tree.opened(100, 3, render=128, address=FIRST, client=7, memory=f"{60 * 2**20} KiB")
    tree.opened(100, 4, render=128, address=FIRST, client=7, memory=f"{60 * 2**20} KiB")
    tree.opened(100, 5, render=136, address=SECOND, client=8, memory="2048 MiB", path="/dev/null (deleted)")
    tree.opened(200, 5, render=128, address=FIRST, client=7, memory=f"{60 * 2**20} KiB")
    tree.opened(200, 6, render=136, address=SECOND, client=9, memory="0")
    (tree.root / "200/fd/7").symlink_to("/dev/null")
    (tree.root / "300/fd").mkdir(parents=True)
    return tree


@pytest.mark.parametrize(
    ("source", "is_privileged", "expected", "problem"),
    [
        ("none", True, {}, processes.UNKNOWN),
        ("kfd", True, {0: [(100, 60)], 8: [(100, 2), (200, 0)]}, ""),
        ("kfd", False, {}, processes.UNNUMBERED),
        ("fdinfo", True, {0: [(100, 60)], 8: [(100, 2)]}, ""),
        ("fdinfo", False, {0: [(100, 60)], 8: [(100, 2)]}, ""),
    ],
)
async def test_the_processes_of_cards(
    tmp_path: Path, source: str, *, is_privileged: bool, expected: dict[int, list[tuple[int, int]]], problem: str
) -> None:
    tree = computing(amd_trees.mi300x(tmp_path, is_privileged=is_privileged))
    reading = await read(tree, source)
    assert (used(reading), note(reading)) == (expected, problem)
    # What decides about processes outside Kubernetes takes them as it takes those of other vendors.
    (tree.root / "100/cgroup").write_text("0::/user.slice\n")
    foreign = [(use.minor, use.processes, use.memory) for use in usage.foreign(reading.processes or {}, tree.root)]
    assert foreign == ([(0, 1, "60Gi"), (8, 1, "2Gi")] if expected else [])


async def test_the_processes_of_partitions(tmp_path: Path) -> None:
    tree = amd_trees.mi300x(tmp_path, compute="CPX", is_privileged=True)
    tree.process(100, *range(128, 136), memory={129: GIB}, queues=[130])
    tree.opened(100, 3, render=129, address=FIRST, client=7, memory="1024 MiB")
    assert used(await read(tree, "kfd")) == {1: [(100, 1)], 2: [(100, 0)]}
    reading = await read(tree, "fdinfo")
    assert (used(reading), note(reading)) == ({}, processes.PARTITIONED)


async def test_processes_are_not_read_if_their_use_is_not_published(tmp_path: Path) -> None:
    tree = computing(amd_trees.mi300x(tmp_path, is_privileged=True))
    reading = await read(tree, "kfd", foreign=False)
    assert (used(reading), note(reading)) == ({}, processes.UNUSED.problem)


async def test_files_that_lie_or_are_refused(tmp_path: Path) -> None:
    tree = computing(amd_trees.mi300x(tmp_path, is_privileged=True))
    (tree.root / amd_trees.PROCESSES / "self").mkdir()
    (tree.root / amd_trees.PROCESSES / f"100/vram_{amd_trees.KFD_ID + 128}").write_text("-1\n")
    (tree.root / amd_trees.PROCESSES / f"100/vram_{amd_trees.KFD_ID + 136}").write_text("many\n")
    assert used(await read(tree, "kfd")) == {8: [(200, 0)]}
    (tree.root / "100/fdinfo/5").write_text("drm-pdev:\t0000:27:00.0\ndrm-client-id:\t8\ndrm-memory-vram:\t²\n")
    assert used(await read(tree, "fdinfo")) == {0: [(100, 60)]}
    with refused(tree.root / "100/fdinfo/3", errno.EIO), refused(tree.root / "100/fdinfo/4", errno.EIO):
        reading = await read(tree, "fdinfo")
    # The child has the same client, and is counted for it.
    assert (used(reading), note(reading)) == ({0: [(200, 60)]}, processes.REFUSED)


async def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    tree = computing(amd_trees.mi300x(tmp_path, is_privileged=True))
    # Without SYS_PTRACE, descriptors are listed, and their links are refused.
    (tree.root / "300/fd").mkdir(exist_ok=True)
    (tree.root / "300/fd/3").write_text("")
    assert note(await read(tree, "fdinfo")) == processes.REFUSED
    with refused(tree.root / amd_trees.PROCESSES / f"100/vram_{amd_trees.KFD_ID + 128}", errno.EIO):
        assert note(await read(tree, "kfd")) == processes.UNREAD
    (tree.root / amd_trees.PROCESSES).rename(tmp_path / "gone")
    for source in ("kfd", "fdinfo"):
        reading = await read(tree, source)
        assert (reading.processes, note(reading)) == ({}, processes.NO_KFD)


@pytest.mark.parametrize("source", ["kfd", "fdinfo"])
async def test_processes_with_too_many_files_are_named(tmp_path: Path, source: str) -> None:
    tree = computing(amd_trees.mi300x(tmp_path, is_privileged=True))
    for number in range(processes.FILES_OF_PROCESS + 1):
        if source == "kfd":
            (tree.root / amd_trees.PROCESSES / f"300/queues/{number}").mkdir()
        else:
            (tree.root / f"300/fd/{number}").symlink_to("socket:[7]")
    reading = await read(tree, source)
    assert used(reading)[0] == [(100, 60)]
    assert note(reading) == "not all processes that use cards are read: process 300 has more than 4096 files"


def test_a_round_ends_however_many_processes_there_are(tmp_path: Path) -> None:
    tree = AmdTree(tmp_path)
    for pid in range(1, 1 + MAX_ENTRIES):
        tree.process(pid)
    one = processes.Round(tree.root)
    assert one.problem(processes.UNREAD) == processes.MANY
    taken = list(one.pids(files=1000))
    assert len(taken) == processes.FILES_OF_ROUND // 1000
    late = sorted({str(pid) for pid in range(1, 1 + MAX_ENTRIES)} - set(taken))
    assert one.problem(processes.UNREAD) == (
        "not all processes that use cards are read: "
        f"the round's 16384 files were used up before process {late[0]} and {len(late) - 1} more"
    )
    # The next round begins with another process.
    assert next(processes.Round(tree.root, number=1).pids(files=1)) == taken[1]


async def test_queues_of_some_do_not_hide_the_memory_of_others(tmp_path: Path) -> None:
    tree = computing(amd_trees.mi300x(tmp_path, is_privileged=True))
    for pid in range(10, 14):
        tree.process(pid, 128)
        for number in range(processes.FILES_OF_PROCESS):
            (tree.root / amd_trees.PROCESSES / f"{pid}/queues/{number}").touch()
    reading = await read(tree, "kfd")
    assert used(reading) == {0: [(100, 60)], 8: [(100, 2)]}
    assert "files were used up before process" in note(reading)


@pytest.mark.parametrize("namespace", ["pid:[4026532201]", None])
@pytest.mark.parametrize("source", ["kfd", "fdinfo"])
async def test_without_hostpid_the_numbers_are_of_other_processes(
    tmp_path: Path, source: str, namespace: str | None
) -> None:
    tree = computing(amd_trees.mi300x(tmp_path, is_privileged=True))
    (tree.root / "self/ns/pid").unlink()
    if namespace:
        (tree.root / "self/ns/pid").symlink_to(namespace)
    reading = await read(tree, source)
    assert (reading.processes, note(reading)) == ({}, processes.NO_HOST_PIDS)


async def test_a_round_that_hangs_holds_up_no_reading(tmp_path: Path) -> None:
    tree = amd_trees.mi300x(tmp_path)
    cards, _ = read_cards(Attributes(), tree.root, sysfs.gpus(tree.root, VENDOR) or [])
    now, answer, answers = 0.0, threading.Event(), [{0: (Process(pid=1),)}, {0: (Process(pid=2),)}, {}]
    answer.set()

    def listed(of: Sequence[Card]) -> Listed:
        assert answer.wait(60)
        return Listed({card.minor: answers[0].get(card.minor, ()) for card in of})

    rounds = ProcessRounds(listed, clock=lambda: now)
    first = await after_next_round(rounds, cards)
    assert first.by_minor
    assert first.by_minor[0] == (Process(pid=1),)
    # Too early for another round, so the object is the same, which says that nothing was listed again.
    answers.pop(0)
    assert (await rounds.of(cards)).by_minor is first.by_minor
    now += PERIOD
    answer.clear()
    others = set(threading.enumerate())
    assert await rounds.of(cards) == first
    [hanging] = set(threading.enumerate()) - others
    now += PATIENCE
    assert await rounds.of(cards) == Listed(None, HANGS)
    answer.set()
    hanging.join()
    ended = await rounds.of(cards)
    assert ended.by_minor
    assert (ended.by_minor[0], ended.problem) == ((Process(pid=2),), "")


async def test_a_round_begins_at_once_for_other_cards(tmp_path: Path) -> None:
    tree = amd_trees.mi300x(tmp_path)
    cards, _ = read_cards(Attributes(), tree.root, sysfs.gpus(tree.root, VENDOR) or [])
    [gone, *stay] = cards
    looked_at: list[list[str]] = []
    answer = threading.Event()
    answer.set()

    def listed(of: Sequence[Card]) -> Listed:
        looked_at.append([card.id for card in of])
        assert answer.wait(60)
        return Listed({card.minor: (Process(pid=1),) for card in of})

    rounds = ProcessRounds(listed, clock=lambda: 0.0)
    await after_next_round(rounds, cards)
    # A card that went takes nothing from the others.
    assert set((await after_next_round(rounds, stay)).by_minor or {}) == {card.minor for card in stay}
    # One that is there again is looked at in the same reading: it never looks unused.
    assert set((await rounds.of(cards)).by_minor or {}) == {card.minor for card in cards}
    assert looked_at == [[card.id for card in of] for of in (cards, stay, cards)]
    # A card that no round has looked at may have the minor of another.
    answer.clear()
    other = await rounds.of([replace(gone, id="GPU-other"), *stay])
    assert (set(other.by_minor or {}), other.problem) == ({card.minor for card in stay}, NOT_YET)
    answer.set()


async def test_processes_that_a_round_omits_are_those_of_the_round_before(tmp_path: Path) -> None:
    tree = amd_trees.mi300x(tmp_path)
    cards, _ = read_cards(Attributes(), tree.root, sysfs.gpus(tree.root, VENDOR) or [])
    now = 0.0
    results = [
        Listed({0: (Process(pid=1), Process(pid=2), Process(pid=3, memory=3)), 8: (Process(pid=4, memory=9),)}),
        Listed({0: (Process(pid=3, memory=4),), 8: (Process(pid=4, memory=1),)}, "too many", frozenset({2, 3, 4})),
        Listed({0: (), 8: ()}),
    ]
    rounds = ProcessRounds(lambda _: results.pop(0), clock=lambda: now)
    await after_next_round(rounds, cards)
    kept = {0: (Process(pid=3, memory=4), Process(pid=2)), 8: (Process(pid=4, memory=9),)}
    for expected in (kept, {0: (), 8: ()}):
        now += PERIOD
        assert (await after_next_round(rounds, cards)).by_minor == expected


async def after_next_round(rounds: ProcessRounds, cards: Sequence[Card]) -> Listed:
    """Return the answer after the round that the next call begins."""
    others = set(threading.enumerate())
    await rounds.of(cards)
    for thread in set(threading.enumerate()) - others:
        thread.join()
    return await rounds.of(cards)


async def test_before_the_first_round_ends_it_is_not_known_who_uses_cards(tmp_path: Path) -> None:
    tree = amd_trees.mi300x(tmp_path)
    cards, _ = read_cards(Attributes(), tree.root, sysfs.gpus(tree.root, VENDOR) or [])
    answer, others = threading.Event(), set(threading.enumerate())

    def listed(_: Sequence[Card]) -> Listed:
        assert answer.wait(60)
        return Listed({0: (Process(pid=1),)})

    rounds = ProcessRounds(listed)
    assert await rounds.of(cards) == Listed(None, NOT_YET)
    # The second caller waits, too: the first one may have been for the metrics.
    waiting = asyncio.create_task(rounds.of(cards))
    await asyncio.sleep(0)
    answer.set()
    for thread in set(threading.enumerate()) - others:
        thread.join()
    assert await waiting == Listed({0: (Process(pid=1),)})


async def test_a_round_that_fails_says_so(tmp_path: Path) -> None:
    tree = amd_trees.mi300x(tmp_path)
    cards, _ = read_cards(Attributes(), tree.root, sysfs.gpus(tree.root, VENDOR) or [])

    def fails(_: Sequence[Card]) -> Listed:
        raise OSError("no")

    assert (await ProcessRounds(fails).of(cards)).problem == "the processes that use cards cannot be read: OSError: no"
