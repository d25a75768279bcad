"""The driver's sockets: kubelet finds the driver and calls it in each version; no socket of a dead agent stays."""

import asyncio
import contextlib
import itertools
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth_agent.dra.calls import CallMetrics
from berth_agent.dra.service import ClaimKey, DriverService, HealthFeed, PreparedDevice
from berth_agent.dra.sockets import DriverSockets
from berth_agent.kubelet.channel import open_channel
from berth_agent.kubelet.device_plugin.registration import ServingError
from berth_agent.kubelet_api import dra_pb2 as messages
from berth_agent.kubelet_api import drahealth_pb2 as health_messages
from berth_agent.kubelet_api.registration_pb2 import InfoRequest, RegistrationStatus
from berth_agent.kubelet_api.registration_pb2_grpc import RegistrationStub
from berth_agent.vendor import RefusedError


class OneDevice:
    """Prepares every claim with a device of its name, except `refused`."""

    async def prepare(self, claim: ClaimKey) -> tuple[PreparedDevice, ...]:
        if claim.name == "refused":
            raise RefusedError("another claim holds it")
        return (PreparedDevice(request="gpu", pool="node", device=claim.name, cdi_ids=(f"vendor/class={claim.uid}",)),)

    async def unprepare(self, claim: ClaimKey) -> None:
        await self.prepare(claim)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder whose sockets have short paths."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def sockets(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.sock")}


async def test_kubelet_registers_calls_and_follows_the_driver(folder: Path) -> None:
    feed = HealthFeed()
    feed.update({("node", "sound"): "", ("node", "faulty"): "é" * 1024})
    metrics = CallMetrics()
    driver = DriverSockets(folder, DriverService(claims=OneDevice(), health=feed, metrics=metrics))
    await driver.start()
    [registration] = (folder / "plugins_registry").iterdir()
    async with open_channel(registration) as channel:
        info = await RegistrationStub(channel).GetInfo(InfoRequest())
        await RegistrationStub(channel).NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True))
    assert (info.type, info.name, driver.registration.is_registered) == ("DRAPlugin", "gpu.berth.dev", True)
    claims = [messages.Claim(namespace="ns", uid=f"uid-{name}", name=name) for name in ("card", "refused")]
    async with open_channel(Path(info.endpoint)) as channel:
        for version in info.supported_versions:
            if version.endswith("DRAPlugin"):
                path = f"/k8s.io.kubelet.pkg.apis.dra.{version}"
                prepare = channel.unary_unary(
                    f"{path}/NodePrepareResources",
                    request_serializer=messages.NodePrepareResourcesRequest.SerializeToString,
                    response_deserializer=messages.NodePrepareResourcesResponse.FromString,
                )
                answer = await prepare(messages.NodePrepareResourcesRequest(claims=claims))
                [device] = answer.claims["uid-card"].devices
                assert (device.device_name, list(device.cdi_device_ids)) == ("card", ["vendor/class=uid-card"])
                assert answer.claims["uid-refused"].error == "another claim holds it"
                unprepare = channel.unary_unary(
                    f"{path}/NodeUnprepareResources",
                    request_serializer=messages.NodeUnprepareResourcesRequest.SerializeToString,
                    response_deserializer=messages.NodeUnprepareResourcesResponse.FromString,
                )
                released = await unprepare(messages.NodeUnprepareResourcesRequest(claims=claims))
                assert {uid: claim.error for uid, claim in released.claims.items()} == {
                    "uid-card": "",
                    "uid-refused": "another claim holds it",
                }
            else:
                watch = channel.unary_stream(
                    f"/{version}/NodeWatchResources",
                    request_serializer=health_messages.NodeWatchResourcesRequest.SerializeToString,
                    response_deserializer=health_messages.NodeWatchResourcesResponse.FromString,
                )
                stream = aiter(watch(health_messages.NodeWatchResourcesRequest()))
                first = await anext(stream)
                assert [(one.device.device_name, one.health) for one in first.devices] == [("sound", 1), ("faulty", 2)]
                assert len(first.devices[1].message.encode()) == 1024
                feed.update({("node", version): ""})
                assert [one.device.device_name for one in (await anext(stream)).devices] == [version]
                feed.update({("node", "sound"): "", ("node", "faulty"): "é" * 1024})
        # Streams end with the server, not with its grace.
        async with asyncio.timeout(1):
            await driver.stop()
    assert sockets(folder) == set()
    counts = {
        (sample.labels["call"], sample.labels["is_error"]): sample.value
        for family in metrics.collect()
        for sample in family.samples
        if sample.name == "berth_claim_call_duration_seconds_count"
    }
    assert counts == dict.fromkeys(itertools.product(("prepare", "unprepare"), ("true", "false")), 2)


async def test_a_start_takes_new_names_and_removes_dead_sockets(folder: Path) -> None:
    registry, services = folder / "plugins_registry", folder / "plugins/gpu.berth.dev"
    service = DriverService(claims=OneDevice(), health=HealthFeed(), metrics=CallMetrics())
    other = DriverSockets(folder, service)
    await other.start()
    alive = sockets(folder)
    for path in (registry / "gpu.berth.dev-dead-reg.sock", services / "dra-dead.sock", registry / "other-reg.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    driver = DriverSockets(folder, service)
    await driver.start()
    own = sockets(folder) - alive
    assert len(own) == 3
    assert "other-reg.sock" in own
    assert not driver.broken
    for path in registry.glob("gpu.berth.dev-*"):
        path.unlink()
    assert driver.broken
    await asyncio.gather(driver.stop(), other.stop())
    assert sockets(folder) == {"other-reg.sock"}


async def test_a_socket_of_a_busy_agent_neither_blocks_the_start_nor_is_removed(folder: Path) -> None:
    services = folder / "plugins/gpu.berth.dev"
    services.mkdir(parents=True)
    path = services / "dra-busy.sock"
    driver = DriverSockets(folder, DriverService(claims=OneDevice(), health=HealthFeed(), metrics=CallMetrics()))
    with contextlib.ExitStack() as stack:
        busy = stack.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(path))
        busy.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.settimeout(0)
                waiting.connect(str(path))
        await driver.start()
        assert path.exists()
        await driver.stop()


async def test_a_path_that_no_socket_can_have_is_named(tmp_path: Path) -> None:
    driver = DriverSockets(
        tmp_path / ("long" * 20), DriverService(claims=OneDevice(), health=HealthFeed(), metrics=CallMetrics())
    )
    with pytest.raises(ServingError, match="more than 107 bytes"):
        await driver.start()
    await driver.stop()
