"""One thread owns NVML for all callers."""

import asyncio
import threading

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.vendors.nvidia.nvml.inventory import NvmlInventory
from berth_agent.vendors.nvidia.nvml.session import Session
from berth_api import names
from tests.nvml.fixture import a100
from tests.nvml.probe import Machine


async def test_all_work_runs_in_one_thread_in_turn() -> None:
    session = Session(path=None)
    seen = await asyncio.gather(*(session.run(threading.get_ident) for _ in range(8)))
    session.close()
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()


async def test_an_error_reaches_the_caller_and_not_the_thread() -> None:
    session = Session(path=None)
    with pytest.raises(ZeroDivisionError):
        await session.run(lambda: 1 // 0)
    assert await session.run(lambda: 7) == 7
    session.close()


async def test_a_call_that_hangs_in_the_driver_is_a_condition_and_the_cards_stay(machine: Machine) -> None:
    fixture = machine(a100(0))
    settings = Settings(node_name="a", nvml_library=fixture.library, sysfs_root=fixture.sysfs, read_timeout=0.2)
    inventory = NvmlInventory(settings)
    await inventory.read()
    driver = threading.Event()
    hanging = asyncio.ensure_future(inventory._session.run(driver.wait))
    await asyncio.sleep(0)
    reading = (await inventory.read())["a"]
    conditions = {finding.type: (finding.ok, finding.reason) for finding in reading.findings}
    assert conditions == {names.DRIVER_LOADED: (True, "DriverLoaded"), names.INVENTORY_READ: (False, "ReadTimedOut")}
    assert len(reading.spec.devices) == 1
    driver.set()
    await hanging
    async with asyncio.timeout(20):  # on a busy machine a read may time out once more
        while not all(finding.ok for finding in (await inventory.read())["a"].findings):
            pass
    inventory.close()
