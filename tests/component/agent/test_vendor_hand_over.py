"""Kubelet's plugin serves the cards of any vendor by the interfaces of a vendor alone."""

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson

from berth_agent.configuration.settings import Settings
from berth_agent.kubelet.device_plugin.chooser import NoPreference
from berth_agent.kubelet.device_plugin.manager import PluginManager
from berth_agent.kubelet_api.deviceplugin_pb2 import ContainerAllocateResponse
from berth_agent.kubelet_api.deviceplugin_pb2 import DeviceSpec as DeviceNode
from berth_agent.readings import NodeUse, Reading
from berth_agent.vendor import CDI_VENDOR, MisconfiguredError, Offer, Offers, Specification, Unit
from berth_api.device import DeviceInfo, DeviceSpec
from tests.stand_ins.kubelet import DEADLINE, Kubelet

RESOURCE: Final = "example.com/gpu"
CARDS: Final = [DeviceInfo(type="gpu", minor=minor, id=f"GPU-{minor}", health=True) for minor in range(2)]


class ExampleAccess:
    """Cards with one device node each."""

    one_at_most = False

    def __init__(self, *, complete: bool) -> None:
        self._complete = complete

    def check(self) -> None:
        if not self._complete:
            raise MisconfiguredError("/dev/example: not there")

    def cdi(self) -> dict[str, Specification]:
        return {"gpu": {"cdiVersion": "0.5.0", "kind": f"{CDI_VENDOR}example.com/gpu", "devices": []}}

    def prefer(self, offer: Offer, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:  # noqa: ARG002
        return [*must_include, *sorted(available, reverse=True)][:size]

    def grant(self, ids: Sequence[str]) -> ContainerAllocateResponse:
        nodes = [f"/dev/example{card.removeprefix('GPU-')}" for card in ids]
        return ContainerAllocateResponse(
            devices=[DeviceNode(container_path=node, host_path=node, permissions="rw") for node in nodes]
        )


class ExampleHandOver:
    """One resource with all cards."""

    fails_without_cards = False
    renames = False
    complete = True

    def reload(self) -> None:
        """Have no options."""

    def offers(self, spec: DeviceSpec, *, withheld: frozenset[str] = frozenset()) -> Offers:
        units = (Unit(id=card.id, minor=card.minor, healthy=card.id not in withheld) for card in spec.devices)
        return Offers(offers=(Offer(resource=RESOURCE, units=tuple(units)),))

    def shown(self, spec: DeviceSpec) -> DeviceSpec:
        return spec

    def access(self, spec: DeviceSpec) -> ExampleAccess:  # noqa: ARG002
        return ExampleAccess(complete=self.complete)


async def test_the_cards_of_any_vendor_are_offered_and_given() -> None:
    with tempfile.TemporaryDirectory(prefix="berth-") as path:
        folder = Path(path)
        (folder / "plugins").mkdir()
        kubelet = Kubelet(folder / "plugins")
        await kubelet.start()
        settings = Settings(
            node_name="n", kubelet_socket=str(folder / "plugins/kubelet.sock"), cdi_folder=folder / "cdi"
        )
        hand_over = ExampleHandOver()
        plugin = PluginManager(settings, hand_over=hand_over, chooser=NoPreference(), check_interval=0.05)
        plugin.update(Reading(spec=DeviceSpec(devices=CARDS), findings=()))
        running = asyncio.create_task(plugin.run())
        await kubelet.sees(lambda units: units.get(RESOURCE) == {"GPU-0": "Healthy", "GPU-1": "Healthy"})
        answer = await kubelet.allocate("GPU-1", endpoint="berth/example-gpu.sock")
        assert [node.host_path for node in answer.devices] == ["/dev/example1"]
        [file] = (folder / "cdi").iterdir()
        assert file.name == "k8s.device-plugin.example.com-gpu.json"
        assert orjson.loads(file.read_bytes())["kind"] == "k8s.device-plugin.example.com/gpu"
        # Cards that the plugin of their vendor offers are neither offered nor withheld here.
        of_others = Reading(spec=DeviceSpec(devices=CARDS), findings=(), use=NodeUse(), offered=False)
        plugin.update(of_others)
        await kubelet.sees(lambda units: units.get(RESOURCE) == {})
        plugin.leave()
        assert plugin.with_withheld(of_others) is of_others
        hand_over.complete = False
        plugin.update(Reading(spec=DeviceSpec(devices=CARDS[:1]), findings=()))
        async with asyncio.timeout(DEADLINE):
            while (last := plugin.view(Reading(spec=DeviceSpec(), findings=())).findings[-1]).ok:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (last.reason, last.message) == ("Misconfigured", "/dev/example: not there")
        # Such a plugin does not follow the choice of the scheduler.
        assert plugin.view(Reading(spec=DeviceSpec(), findings=())).spec.replica_choice == "kubelet"
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await kubelet.stop()
