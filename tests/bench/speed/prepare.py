"""How soon claims get whole cards, and lost ResourceSlices are back: `python -m tests.bench.speed.prepare`.

CALLS and LOSSES are environment variables. One node has eight cards of the NVML fixture, and an agent with its driver.
A client takes kubelet's place and keeps its order: it registers the driver, prepares the claim of each pod before the
containers would start, one pod after the other over one connection, and releases the claims when the pods have ended.
Each call needs the live claim, two writes that reach the disk, and the answer. LOSSES times, all slices of the node are
deleted, as by a kubelet that starts. The last line has the milliseconds of a call of Prepare, the agent's milliseconds
of CPU for a claim that is prepared and released, and the longest time in seconds from a deletion until all slices were
back.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from berth_agent.kubelet.channel import open_channel
from berth_agent.kubelet_api import dra_pb2 as messages
from berth_agent.kubelet_api.registration_pb2 import InfoRequest, RegistrationStatus
from berth_agent.kubelet_api.registration_pb2_grpc import RegistrationStub
from berth_api.names import CARDS_KEY, DRA_DRIVER
from devcluster import Arena, waiting
from tests.bench import figures
from tests.bench.cluster import usage
from tests.bench.resources.agent import CARDS, PUBLISHED_SECONDS, opened
from tests.nvml.fixture import NvmlFixture, a100
from tests.objects.resource_claims import allocated
from tests.programs.processes import Process, Processes
from tests.stand_ins.pod_resources import PodResourcesServer

GROUP: Final = "/apis/resource.k8s.io/v1"
SERVICE: Final = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
SETTLED: Final = 6.0
"""Seconds between two losses. The driver pauses before it replaces slices that were deleted as soon as written."""
POLL: Final = 0.02


def main() -> None:
    """Run the benchmark."""
    calls, losses = figures.number("CALLS", 800), figures.number("LOSSES", 5)
    with opened() as arena, node(arena) as (name, folder, agent):
        before = usage.cpu_seconds(agent.pid)
        milliseconds = asyncio.run(prepared(arena, name, folder, calls))
        spent = usage.cpu_seconds(agent.pid) - before
        seconds = [slices_back(arena, name) for _ in range(losses)]
    figures.result(
        {
            "bench": "prepare",
            "calls": len(milliseconds),
            "p50_ms": round(figures.quantile(milliseconds, 0.5), 1),
            "p99_ms": round(figures.quantile(milliseconds, 0.99), 1),
            "max_ms": round(max(milliseconds), 1),
            "cpu_ms": round(1000 * spent / len(milliseconds), 1),
            "slices_back_s": round(max(seconds), 2),
        }
    )


@contextmanager
def node(arena: Arena) -> Iterator[tuple[str, Path, Process]]:
    """Run the agent of a node whose cards are given by claim; return the node's name, kubelet's folder, the agent."""
    [name] = arena.nodes(1)
    arena.merge("nodes", name, {"metadata": {"labels": {CARDS_KEY: "claims"}}})
    # Sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="berth-") as short:
        folder = Path(short)
        machine = NvmlFixture(folder, gpus=[a100(number) for number in range(CARDS)], event_poll_ms=1000)
        machine.write()
        programs = Processes(arena=arena, folder=folder)
        with PodResourcesServer(folder / "resources.sock") as resources:
            try:
                agent = programs.node_agent(
                    name,
                    machine,
                    dra=True,
                    kubelet_folder=folder / "kubelet",
                    pod_resources_socket=resources.socket,
                    cdi_folder=folder / "cdi",
                )
                waiting.until(
                    lambda: len(slices(arena, name)) == CARDS,
                    deadline=PUBLISHED_SECONDS,
                    what="all cards in slices",
                    details=programs.tails,
                    poll=0.1,
                )
                yield name, folder / "kubelet", agent
            finally:
                programs.close()


async def prepared(arena: Arena, node_name: str, kubelet: Path, calls: int) -> list[float]:
    """Return the milliseconds of each call of Prepare."""
    [socket] = (kubelet / "plugins_registry").iterdir()
    async with open_channel(socket) as channel:
        driver = RegistrationStub(channel)
        info = await driver.GetInfo(InfoRequest())
        await driver.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True))
    cards = slices(arena, node_name)
    taken: list[float] = []
    async with open_channel(Path(info.endpoint)) as channel:
        prepare = channel.unary_unary(
            f"{SERVICE}/NodePrepareResources",
            request_serializer=messages.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=messages.NodePrepareResourcesResponse.FromString,
        )
        unprepare = channel.unary_unary(
            f"{SERVICE}/NodeUnprepareResources",
            request_serializer=messages.NodeUnprepareResourcesRequest.SerializeToString,
            response_deserializer=messages.NodeUnprepareResourcesResponse.FromString,
        )
        while len(taken) < calls:
            claims = [await asyncio.to_thread(_allocate, arena, node_name, card) for card in sorted(cards)]
            for claim in claims:
                start = time.perf_counter()
                answer = await prepare(messages.NodePrepareResourcesRequest(claims=[claim]))
                taken.append(1000 * (time.perf_counter() - start))
                assert len(answer.claims[claim.uid].devices) == 1, answer
            for claim in claims:
                released = await unprepare(messages.NodeUnprepareResourcesRequest(claims=[claim]))
                assert not released.claims[claim.uid].error, released
                await asyncio.to_thread(arena.delete, "resourceclaims", claim.name)
    return taken


def slices_back(arena: Arena, node_name: str) -> float:
    """Delete all slices of the node, and return the seconds until all cards are in slices again."""
    time.sleep(SETTLED)
    before = slices(arena, node_name)
    arena.cluster.api.delete(f"{GROUP}/resourceslices", fieldSelector=f"spec.nodeName={node_name}")
    start = time.perf_counter()

    def are_back() -> bool:
        now = slices(arena, node_name)
        return now.keys() == before.keys() and not set(now.values()) & set(before.values())

    waiting.until(are_back, deadline=PUBLISHED_SECONDS, what="the slices to be back", poll=POLL)
    return time.perf_counter() - start


def slices(arena: Arena, node_name: str) -> dict[str, str]:
    """Return the UID of the slice of each listed device."""
    found = arena.cluster.api.get(f"{GROUP}/resourceslices", fieldSelector=f"spec.nodeName={node_name}")["items"]
    return {device["name"]: one["metadata"]["uid"] for one in found for device in one["spec"]["devices"]}


def _allocate(arena: Arena, node_name: str, card: str) -> messages.Claim:
    """Create a claim that has a card, as a scheduler leaves it before kubelet sees the pod."""
    wanted: dict[str, Any] = allocated(f"claim-{card}", card, node=node_name, driver=DRA_DRIVER)
    path = f"{GROUP}/namespaces/{arena.namespace}/resourceclaims"
    body = {"metadata": {"name": wanted["metadata"]["name"]}, "spec": wanted["spec"]}
    created = arena.cluster.api.post(path, body)
    arena.cluster.api.request(
        "PUT", f"{path}/{body['metadata']['name']}/status", body={**created, "status": wanted["status"]}
    )
    return messages.Claim(namespace=arena.namespace, uid=created["metadata"]["uid"], name=created["metadata"]["name"])


if __name__ == "__main__":
    main()
