"""An application's fault is counted, and does not take its card out of service."""

import json
import subprocess
import sys
import time
from typing import Any, Final

import pytest

from tests.gpu.look import ROOT, look

pytestmark = pytest.mark.usefixtures("_gpu")

ILLEGAL_ADDRESS: Final = 700
"""CUDA's code of a write to memory that the process does not have."""
MMU_FAULT: Final = 31
"""The Xid of it."""
REPORTED_WITHIN: Final = 3.0
"""Seconds until the driver has reported what it will."""


def test_an_illegal_access_of_a_process_leaves_the_card_healthy() -> None:
    [card, *_] = look().processes
    command = [sys.executable, "-m", "tests.gpu.follow"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdin is not None
        assert following.stdout is not None
        while following.stdout.readline().strip() != "ready":
            assert following.poll() is None, "the follower ended"
        assert crash(card) == ILLEGAL_ADDRESS
        time.sleep(REPORTED_WITHIN)
        following.stdin.write("\n")
        following.stdin.close()
        seen: dict[str, Any] = json.loads(following.stdout.read().splitlines()[-1])
    assert [card, MMU_FAULT] in [[each, number] for each, number, _ in seen["xids"]], seen
    assert seen["faults"] == []
    assert card in seen["healthy"]


def crash(card: str) -> int:
    command = [sys.executable, "-m", "tests.gpu.crash", card]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    return int(done.stdout)
