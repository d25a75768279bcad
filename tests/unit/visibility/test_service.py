"""The visibility API's server runs in the scheduler's process, and does not end it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from berth_base import start
from berth_operator.apis.visibility.service import PAUSE_SECONDS, VisibilityService
from berth_operator.metrics import counters
from berth_operator.settings.flags import Settings
from tests.unit.visibility.test_registration import ApiServer

pytestmark = pytest.mark.looptime

UNUSED: Any = None


def failures() -> float:
    return float(counters.VISIBILITY_FAILURES.labels("server")._value.get())


async def test_a_server_that_fails_is_started_again(tmp_path: Path) -> None:
    settings = start.read(Settings, [f"--kubeconfig={tmp_path}/none", "--visibility-port=9445", "--pod-ip=10.0.0.1"])
    service, before = VisibilityService(settings=settings, election=UNUSED, api=UNUSED, decisions=UNUSED), failures()
    with capture_logs() as logs:
        serving = asyncio.create_task(service.serve())
        await asyncio.sleep(2.5 * PAUSE_SECONDS)
    assert not serving.done()
    assert [(line["log_level"], line["event"]) for line in logs] == [("error", "visibility API not served")] * 3
    assert failures() == before + 3
    serving.cancel()


async def test_without_a_port_nothing_is_served() -> None:
    api: Any = ApiServer(None)
    service = VisibilityService(settings=start.read(Settings, []), election=UNUSED, api=api, decisions=UNUSED)
    serving = asyncio.create_task(service.serve())
    await asyncio.sleep(1)
    assert (serving.done(), api.writes) == (False, 0)
    serving.cancel()
