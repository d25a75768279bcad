"""kubelet's PodResources over a real socket, and kubelets that are absent, hang, die, or send long answers."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from berth_agent.kubelet.admission.admission import UnavailableError
from berth_agent.kubelet.admission.mirror import ContainerReport
from berth_agent.kubelet.podresources import PodResources
from berth_agent.readings import ClaimedByContainer
from berth_agent.usage.replicas import OfferedReplicas
from berth_api.device import ClaimedDevice, DeviceInfo, DeviceSpec, Mig, MigInstance
from tests.stand_ins.pod_resources import PodResourcesServer

GPU = "nvidia.com/gpu"
PATIENCE = 60.0
"""Seconds: far more than any answer takes."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
async def client(path: Path) -> AsyncIterator[PodResources]:
    client = PodResources(path, timeout=PATIENCE)
    yield client
    await client.close()


@pytest.fixture
def kubelet(path: Path) -> PodResourcesServer:
    return PodResourcesServer(path)


async def test_devices_of_the_plugin_are_listed_across_numa_nodes(
    client: PodResources, kubelet: PodResourcesServer
) -> None:
    with kubelet:
        kubelet.given = {
            ("ns", "a", "x"): {GPU: ["GPU-1", "GPU-2"], "nvidia.com/mig-1g.10gb": ["MIG-1"], "rdma/hca": ["0"]},
            ("ns", "a", "y"): {},
            ("ns", "b", "x"): {"nvidia.com/hostdev": ["0"]},
        }
        by_resource = {GPU: frozenset({"GPU-1", "GPU-2"}), "nvidia.com/mig-1g.10gb": frozenset({"MIG-1"})}
        reports = ContainerReport(namespace="ns", pod="a", container="x", by_resource=by_resource)
        assert await client.list_containers() == (reports,)


async def test_replicas_of_another_plugin_are_shown(client: PodResources, kubelet: PodResourcesServer) -> None:
    cards = [DeviceInfo(type="gpu", minor=minor, id=f"GPU-{minor}") for minor in range(3)]
    cards.append(DeviceInfo(type="gpu", minor=3, id="GPU-3", mig=Mig(enabled=True)))
    replicas, spec = OfferedReplicas(client), DeviceSpec(devices=cards)

    def shown() -> tuple[str, list[tuple[int, str]]]:
        view = replicas.shown(spec)
        return view.replica_choice, [(card.replicas, card.replica_resource) for card in view.devices]

    whole, other = (1, ""), f"{GPU}.shared"
    assert not await replicas.refresh()
    assert replicas.shown(spec) is spec
    with kubelet:
        kubelet.offered = {GPU: ["GPU-0::0", "GPU-0::1", "GPU-1::1", "GPU-1::0", "GPU-3::0", "GPU-3::1"]}
        kubelet.offered |= {"rdma/hca": ["GPU-2::0", "GPU-2::1"]}
        assert await replicas.refresh()
        assert shown() == ("kubelet", [(2, GPU), (2, GPU), whole, whole])
        # The plugin is away, or one card is unhealthy.
        for listed in ([], ["GPU-1::0", "GPU-1::1"]):
            kubelet.offered = {GPU: listed}
            assert not await replicas.refresh()
        assert shown() == ("kubelet", [(2, GPU), (2, GPU), whole, whole])
        kubelet.offered = {GPU: ["GPU-0"], other: ["GPU-1::0", "GPU-1::1", "GPU-1::2"]}
        assert await replicas.refresh()
        assert shown() == ("kubelet", [whole, (3, other), whole, whole])
    assert not await replicas.refresh()
    # The next agent begins with what this one has published.
    replicas = OfferedReplicas(client)
    replicas.restore([cards[0].model_copy(update={"replicas": 2, "replica_resource": GPU})])
    assert shown() == ("kubelet", [(2, GPU), whole, whole, whole])


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.shared", GPU])
async def test_replicas_of_instances_of_another_plugin_are_shown(
    client: PodResources, kubelet: PodResourcesServer, resource: str
) -> None:
    fields: Any = {"profile": "1g.10gb", "compute_instance": 0, "memory": "9Gi"}
    instances = [MigInstance(id=f"MIG-{number}", gpu_instance=number, **fields) for number in range(2)]
    card = DeviceInfo(type="gpu", minor=0, id="GPU-0", mig=Mig(enabled=True, instances=instances))
    replicas, spec = OfferedReplicas(client), DeviceSpec(devices=[card])
    with kubelet:
        kubelet.offered = {resource: ["MIG-0::0", "MIG-0::1", "MIG-1", "GPU-0::0", "GPU-0::1"]}
        assert await replicas.refresh()
    # Now, and of the next agent.
    for _ in range(2):
        view = replicas.shown(spec)
        assert view.replica_choice == "kubelet"
        [shown] = view.devices
        assert (shown.replicas, shown.replica_resource) == (1, "")
        assert shown.mig is not None
        listed = [(instance.replicas, instance.replica_resource) for instance in shown.mig.instances]
        assert listed == [(2, resource), (1, "")]
        replicas = OfferedReplicas(client)
        replicas.restore(view.devices)


async def test_devices_of_claims_are_listed_in_order(client: PodResources, kubelet: PodResourcesServer) -> None:
    with kubelet:
        of_driver = ("gpu.nvidia.com", "node-1")
        kubelet.claimed = {
            ("ns", "a", "x"): [("c", *of_driver, "gpu-1"), ("c", *of_driver, "gpu-0"), ("", *of_driver, "gpu-2")],
            ("ns", "b", "x"): [("c", *of_driver, "gpu-1")],
        }
        assert await client.list_containers() == ()
        assert client.claim_users == tuple(
            ClaimedByContainer(
                pod=pod,
                container="x",
                device=ClaimedDevice(namespace="ns", claim="c", driver="gpu.nvidia.com", pool="node-1", device=device),
            )
            for pod, device in (("a", "gpu-0"), ("a", "gpu-1"), ("b", "gpu-1"))
        )
        # All of them: the driver of claims finds out by them what must not be given again.
        kubelet.claimed = {("ns", "a", "x"): [("c", *of_driver, f"gpu-{number}") for number in range(300)]}
        await client.list_containers()
        assert len(client.claim_users) == 300
        kubelet.claimed = {}
        await client.list_containers()
        assert client.claim_users == ()


async def test_a_long_answer_is_read(client: PodResources, kubelet: PodResourcesServer) -> None:
    # 5 MB: gRPC's default limit is 4 MB.
    ids = [f"GPU-{number:036}" for number in range(1000)]
    with kubelet:
        kubelet.given = {("ns", f"pod-{number}", "main"): {GPU: ids} for number in range(100)}
        assert [len(each.by_resource[GPU]) for each in await client.list_containers()] == [1000] * 100


@contextmanager
def answering(path: Path, content: bytes) -> Iterator[None]:
    """Serve a kubelet whose answers have this content, whatever is asked."""
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: content
    )
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield
    server.stop(None).wait()


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"\x0a\x05\x0a", b"\x0a\x03\x0a\x01\xff", b"\x0f"],
    ids=["no field", "cut off", "no UTF-8", "no such wire type"],
)
async def test_an_answer_that_cannot_be_parsed_is_none(client: PodResources, path: Path, content: bytes) -> None:
    with (
        answering(path, content),
        pytest.raises(UnavailableError, match=r"kubelet\.sock: the answer is no ListPodResourcesResponse"),
    ):
        await client.list_containers()


async def test_a_kubelet_that_is_away_is_found_by_the_first_question_after_its_return(
    client: PodResources, kubelet: PodResourcesServer
) -> None:
    for _ in range(3):
        # Several in a row, so that a channel would pause before it connects again.
        for _ in range(3):
            # The first of them may still be asked on the connection that kubelet has just closed.
            with pytest.raises(UnavailableError, match=r"kubelet\.sock: .*(No such file|Broken pipe|Stream removed)"):
                await client.list_containers()
        with kubelet:
            assert await client.list_containers() == ()


async def test_a_socket_without_a_server_fails_at_once(client: PodResources, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with pytest.raises(UnavailableError, match="Connection refused"):
        await client.list_containers()


async def test_a_kubelet_that_hangs_is_given_up(path: Path) -> None:
    client = PodResources(path, timeout=0.2)
    async with never_reported(path, hangs_up=False):
        with pytest.raises(UnavailableError, match="Deadline Exceeded"):
            await client.list_containers()
    await client.close()


async def test_a_kubelet_that_dies_while_it_is_asked_is_noticed_at_once(client: PodResources, path: Path) -> None:
    async with never_reported(path, hangs_up=True):
        with pytest.raises(UnavailableError):
            await client.list_containers()


@asynccontextmanager
async def never_reported(path: Path, *, hangs_up: bool) -> AsyncIterator[None]:
    """Serve a socket that reads, and never answers."""
    writers: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read(1)
        if hangs_up:
            writer.close()

    async with await asyncio.start_unix_server(take, path):
        yield
        for writer in writers:
            writer.close()


async def test_a_kubelet_that_ends_between_connecting_and_the_first_use_is_away(
    client: PodResources, path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with hanging_up(listener):
            for _ in range(100):
                with pytest.raises(UnavailableError):
                    await client.list_containers()


@contextmanager
def hanging_up(listener: socket.socket) -> Iterator[None]:
    """Accept connections and close them at once."""

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
