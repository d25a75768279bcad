from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nvml.fixture import Gpu, NvmlFixture
from tests.nvml.probe import Machine, Probe, Start


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    def build(*gpus: Gpu, loaded: bool = True) -> NvmlFixture:
        # Closing an inventory waits for the wait that runs, which takes a second otherwise.
        fixture = NvmlFixture(tmp_path, gpus=list(gpus), loaded=loaded, event_poll_ms=5, event_wait_ms=20)
        monkeypatch.setenv("BERTH_NVML_STATE", str(fixture.state))
        fixture.write()
        return fixture

    return build


@pytest.fixture
def agent() -> Iterator[Start]:
    probes: list[Probe] = []

    def start(fixture: NvmlFixture, **settings: Any) -> Probe:
        probes.append(Probe(fixture, **settings))
        return probes[-1]

    yield start
    for probe in probes:
        probe.inventory.close()
