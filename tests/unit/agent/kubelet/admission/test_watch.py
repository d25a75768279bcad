"""The pods of a node: kubelet waits for no Event on them, and pods that cannot be read end nothing."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from berth_agent.event_writer import EventWriter
from berth_agent.kubelet.admission.admission import Admission
from berth_agent.kubelet.admission.checkpoint import Checkpoint
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.admission.watch import NodePods
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError
from berth_api import allocation, names
from berth_client.errors import Unreachable
from tests.unit.agent.kubelet.admission.kubelets import GPU, Kubelet, whole

pytestmark = pytest.mark.looptime

PATIENCE = 10.0
"""Seconds after which a request fails."""


class Client:
    """An API server with two pods that wait for GPU-0; the first Event that it is sent has no answer."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        """The pod of each Event."""
        spec = {"containers": [{"name": "c0", "resources": {"limits": {GPU: "1"}}}]}
        own = {names.ALLOCATED: allocation.render(whole(0))}
        self.pods: list[dict[str, Any]] = [
            {"metadata": {"uid": name, "namespace": "ns", "name": name, "annotations": own}, "spec": spec}
            for name in "ab"
        ]

    async def read_list(self, *_: Any, read: Callable[[Any], Any]) -> tuple[list[Any], str]:
        return list(map(read, self.pods)), "1"

    async def create(self, _: str, body: Mapping[str, Any]) -> None:
        self.sent.append(body["involvedObject"]["name"])
        if len(self.sent) == 1:
            await asyncio.sleep(PATIENCE)
            raise Unreachable("no answer")


async def test_kubelet_waits_for_no_event(tmp_path: Path) -> None:
    client: Any = Client()
    events = EventWriter(client=client, node="n")
    admission = Admission(
        kubelet=Kubelet(devices=["GPU-0", "GPU-1"], chance=random.Random(1)),
        server=NodePods(client=client, node="n"),
        events=events,
        memory=Checkpoint(path=tmp_path / "checkpoint", boot_id="b"),
        running=frozenset,
    )
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(events.run())
        for _ in range(2):
            with pytest.raises(AllocationRefusedError, match="ns/a was given GPU-0; ns/b was given GPU-0"):
                await admission.admit(GPU, ["GPU-1"])
        assert await admission.prefer(GPU, ["GPU-0", "GPU-1"], [], 1) == ["GPU-0"]
        assert loop.time() == 0
        await asyncio.sleep(PATIENCE + 2)
        writing.cancel()
    # Each pod gets one for each text. One without an answer is sent again, after the others.
    assert client.sent == ["a", "b", "a"]


async def test_a_pod_that_cannot_be_read_ends_nothing() -> None:
    """It keeps what was read of it before. Otherwise it may hold any card."""
    client: Any = Client()
    node = NodePods(client=client, node="n")
    before, _ = await node.pods()
    for obj, limits in zip(client.pods, ("x", {GPU: None}), strict=True):
        obj["metadata"]["resourceVersion"] = "2"
        obj["spec"] = {"containers": [{"name": "c0", "resources": {"limits": limits}}]}
    new = {"metadata": {"uid": "c", "namespace": "ns", "name": "c"}, "spec": {"containers": [None]}}
    client.pods.append(new)
    with capture_logs() as logs:
        for _ in range(2):
            after, _ = await node.pods()
    assert after[:2] == [replace(pod, version=2) for pod in before]
    assert after[2] == Pod(uid="c", namespace="ns", name="c", may_hold_any=True)
    assert [(line["event"], line["pod"]) for line in logs] == [("pod cannot be read", f"ns/{name}") for name in "abc"]
