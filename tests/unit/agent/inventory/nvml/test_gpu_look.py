"""The agent's reading in `make test-gpu`, in its own process, on the fixture."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gpu import pretend, smi
from tests.gpu.look import look
from tests.nvml.fixture import NvmlFixture, Process, a100

GONE = 2**22 + 1
"""Above all process ids."""


def test_a_reading_finds_cards_and_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = replace(a100(0), processes=[Process(pid=os.getpid(), used=1), Process(pid=GONE, used=1)])
    gone = replace(a100(2), processes=[Process(pid=GONE, used=1)])
    fixture = NvmlFixture(tmp_path, gpus=[busy, a100(1), gone])
    fixture.write()
    monkeypatch.setenv("BERTH_NVML_STATE", str(fixture.state))
    monkeypatch.setenv("BERTH_AGENT_NVML_LIBRARY", str(fixture.library))
    monkeypatch.setenv("BERTH_AGENT_SYSFS_ROOT", str(fixture.sysfs))
    report = look()
    assert smi.differences(report.facts, smi.facts(pretend.texts(fixture))) == []
    assert report.processes == {busy.uuid: [os.getpid(), GONE], a100(1).uuid: [], gone.uuid: [GONE]}
    in_a_pod = "kubepods" in Path("/proc/self/cgroup").read_text()
    assert report.foreign == ([] if in_a_pod else [busy.uuid])
