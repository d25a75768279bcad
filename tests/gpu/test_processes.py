"""A process that holds a card is reported as long as it holds the card."""

from functools import partial
from pathlib import Path
from typing import Final

import pytest

from berth_agent.usage.processes import pod_of
from devcluster import waiting
from tests.gpu.clients import client
from tests.gpu.look import Look, look

pytestmark = [pytest.mark.usefixtures("_gpu"), pytest.mark.timeout(1800)]

SOME: Final = 64
"""MiB."""
SEEN_WITHIN: Final = 120.0
"""Seconds, most of which are those of a reading on a slow machine."""


def cards(reading: Look) -> dict[str, str]:
    """Return by the UUID of each card what a process can hold: the card, or its first instance in MIG mode."""
    return {uuid: holdable(uuid, reading.facts[uuid]) for uuid in reading.processes}


def holdable(uuid: str, facts: dict[str, str]) -> str:
    if facts["mig.mode.current"] != "Enabled":
        return uuid
    return next(field.removeprefix("mig ") for field in facts if field.startswith("mig MIG-"))


def test_the_process_of_each_card_is_reported_until_it_ends() -> None:
    first = look()
    assert first.processes
    for uuid, device in cards(first).items():
        with client(SOME, CUDA_VISIBLE_DEVICES=device) as (pid, seen):
            assert seen["error"] == 0
            reading = waiting.until(
                partial(look_with, pid, uuid),
                deadline=SEEN_WITHIN,
                what=f"process {pid} on {uuid}; in a container, are the host's processes seen (hostPID)?",
            )
            assert reading is not None
            assert in_a_pod() or uuid in reading.foreign
        waiting.until(
            partial(look_without, pid, uuid),
            deadline=SEEN_WITHIN,
            what=f"the end of process {pid} on {uuid}",
        )


def look_with(pid: int, uuid: str) -> Look | None:
    reading = look()
    return reading if pid in reading.processes[uuid] else None


def look_without(pid: int, uuid: str) -> bool:
    return look_with(pid, uuid) is None


def in_a_pod() -> bool:
    return pod_of(Path("/proc/self/cgroup").read_text()) is not None
