"""A real Prometheus scrapes the agent's metrics, and joins them with NVIDIA's DCGM exporter's."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from berth_agent.metrics.exporter import Exporter
from berth_agent.usage.holders import Holder, PodNames
from berth_api.device import MigInstance
from berth_base import metrics_server as server
from tests.nvml.fixture import HW_THERMAL_SLOWDOWN, MIB, MigDevice, NvmlFixture, Process, a100
from tests.nvml.probe import NODE, Probe
from tests.programs.prometheus import Prometheus, Sample

DOCUMENT: Final = Path(__file__).parents[2] / "docs/agent-metrics.md"
HOST: Final = "127.0.0.1"
UID: Final = "1f2e3d4c-5b6a-4788-9900-aabbccddeeff"
MIG: Final = MigDevice(uuid="MIG-1", profile="1g.10gb", gpu_instance=7)
INSTANCE: Final = MigInstance(id="MIG-1", profile="1g.10gb", gpu_instance=7, compute_instance=0, memory="9728Mi")
HOT, IDLE, DIVIDED = (a100(index).uuid for index in range(3))


@dataclass
class Pods:
    """What the node's pods hold."""

    listed: tuple[Holder, ...]

    def holders(self) -> tuple[Holder, ...]:
        return self.listed

    def pod_names(self) -> dict[str, PodNames]:
        return {UID: PodNames(namespace="ns", name="half")}


def holder(pod: str, card: str, share: float, text: str, instance: MigInstance | None = None) -> Holder:
    memory = MIB if share == 0.5 else None
    return Holder(
        namespace="ns", pod=pod, container="main", card=card, share=share, text=text, memory=memory, instance=instance
    )


PODS: Final = Pods(
    (
        holder("half", HOT, 0.5, "core 50, memory 40Gi"),
        holder("other", HOT, 0.5, "core 50, memory 40Gi"),
        holder("whole", IDLE, 1.0, "whole"),
        holder("small", DIVIDED, 0.119, "MIG 1g.10gb", INSTANCE),
    )
)


@pytest.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[NvmlFixture, str]]:
    """Serve the metrics of a machine, and return it and the address."""
    busy = replace(a100(0), gpu_utilization=97, processes=[Process(pid=10, used=3 * MIB)])
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "cgroup").write_text(f"0::/kubepods/pod{UID}/main\n")
    fixture = NvmlFixture(tmp_path, gpus=[busy, a100(1), replace(a100(2), mig_mode=True, migs=[MIG])])
    monkeypatch.setenv("BERTH_NVML_STATE", str(fixture.state))
    fixture.write()
    probe = Probe(fixture)
    exporter = Exporter(inventory=probe.inventory, proc_root=tmp_path)
    exporter.readings = {NODE: await probe.read()}
    exporter.usage = PODS
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    async with server.serving(exporter.render, address=HOST, port=port):
        yield fixture, f"{HOST}:{port}"
    probe.inventory.close()


@pytest.fixture
def dcgm() -> Iterator[str]:
    """Serve what DCGM exporter would of these cards, with its labels, and return the address."""
    registry = CollectorRegistry()
    utilization = Gauge(
        "DCGM_FI_DEV_GPU_UTIL", "GPU utilization", ["gpu", "UUID", "modelName", "Hostname"], registry=registry
    )
    for index, (uuid, percent) in enumerate({HOT: 97, IDLE: 0}.items()):
        utilization.labels(str(index), uuid, "NVIDIA A100-SXM4-80GB", NODE).set(percent)
    engine = Gauge(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Engine", ["gpu", "UUID", "GPU_I_PROFILE", "GPU_I_ID"], registry=registry
    )
    engine.labels("2", DIVIDED, "1g.10gb", "7").set(0.25)
    served, thread = start_http_server(0, HOST, registry)
    yield f"{HOST}:{served.server_port}"
    served.shutdown()
    served.server_close()
    thread.join()


def queries() -> list[str]:
    """Return the queries of the document."""
    section = DOCUMENT.read_text().partition("## Queries")[2]
    return [" ".join(block.split()) for block in re.findall(r"(?:^ {4}.+\n)+", section, re.MULTILINE)]


def by_pod(samples: list[Sample]) -> dict[str, float]:
    return {sample.labels["pod"]: sample.value for sample in samples}


async def test_prometheus_scrapes_the_agent_and_joins_it_with_dcgm(
    prometheus: Prometheus, agent: tuple[NvmlFixture, str], dcgm: str
) -> None:
    fixture, address = agent
    prometheus.scrape("berth-agent", address)
    prometheus.scrape("dcgm-exporter", dcgm)
    await asyncio.to_thread(prometheus.until, f'berth_gpu_temperature_celsius{{UUID="{HOT}"}} == 34')
    await asyncio.to_thread(prometheus.until, f'DCGM_FI_DEV_GPU_UTIL{{UUID="{HOT}"}} == 97')

    fixture.gpus[0].temperature, fixture.gpus[0].throttle_reasons = 93, HW_THERMAL_SLOWDOWN
    fixture.write()
    await asyncio.to_thread(prometheus.until, f'berth_gpu_temperature_celsius{{UUID="{HOT}",node="{NODE}"}} == 93')
    await asyncio.to_thread(prometheus.until, 'berth_gpu_throttle_reason{reason="hw_thermal_slowdown"} == 1')

    free, heat, refused, exceeded, headroom, idle, joined = [
        await asyncio.to_thread(prometheus.query, query) for query in queries()
    ]
    assert [sample.labels for sample in free] == [{"model": "NVIDIA A100-SXM4-80GB"}]
    assert by_pod(heat) == {"half": 0.5, "other": 0.5}
    # No driver of claims runs.
    assert refused == []
    assert by_pod(exceeded) == {"half": 2 * MIB}
    assert {sample.value for sample in headroom} == {340.0}
    assert [sample.labels["UUID"] for sample in idle] == [IDLE]
    assert by_pod(joined) == {"half": 97.0, "other": 97.0, "whole": 0.0}

    prometheus.scrape("berth-agent", address, labels={"pod": "berth-agent-x"})
    await asyncio.to_thread(prometheus.until, 'berth_gpu_pod_info{exported_pod="whole",pod="berth-agent-x"} == 1')


async def test_instances_are_joined_by_their_id(
    prometheus: Prometheus, agent: tuple[NvmlFixture, str], dcgm: str
) -> None:
    prometheus.scrape("berth-agent", agent[1])
    prometheus.scrape("dcgm-exporter", dcgm)
    of_instances = queries()[-1].replace("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
    assert by_pod(await asyncio.to_thread(prometheus.until, of_instances)) == {"small": 0.25}
    used = await asyncio.to_thread(prometheus.query, "sum by (GPU_I_ID) (berth_gpu_mig_memory_used_bytes)")
    assert [sample.labels for sample in used] == [{"GPU_I_ID": "7"}]
