"""Prometheus' view of a machine of the NVML fixture."""

import asyncio
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from berth_agent.dra.calls import PREPARE, CallMetrics
from berth_agent.metrics.exporter import Exporter
from berth_agent.publishing.publish import TAKE_BACKS
from berth_agent.readings import NodeUse
from berth_agent.usage.holders import Holder, PodNames
from berth_agent.vendors.simulated.inventory import SimulatedInventory
from berth_api.device import UnheldUse
from berth_client.errors import ApiError
from tests.nvml.fixture import GPU_IS_LOST, MIB, SW_POWER_CAP, Gpu, MigDevice, NvmlFixture, Process, a100, t4
from tests.nvml.probe import NODE, Machine, Probe, Start

ROOT: Final = Path(__file__).parents[4]
DOCUMENT: Final = ROOT / "docs/agent-metrics.md"
REFERENCE: Final = ROOT / "docs/reference/metrics.md"
LABELS: Final = re.compile(r"^\| `(berth_\w+)` \| \w+ \| (.*?) \|", re.MULTILINE)
VALUES: Final = re.compile(r"^\| `(berth_gpu_\w+)` \| `(\w+)`: ((?:`\w+`(?:, )?)+) \|$", re.MULTILINE)
UID: Final = "1f2e3d4c-5b6a-4788-9900-aabbccddeeff"
CONTAINER: Final = "c0ffee" * 10 + "abcd"
GI: Final = 2**30
PROMPT: Final = 20.0
"""Seconds within which an answer comes on a busy machine while the driver hangs."""


@dataclass
class Pods:
    """What the node's pods hold."""

    listed: tuple[Holder, ...] = ()
    names: Mapping[str, PodNames] = field(default_factory=dict)

    def holders(self) -> tuple[Holder, ...]:
        return self.listed

    def pod_names(self) -> dict[str, PodNames]:
        return dict(self.names)


class Scraped:
    """The series of one answer."""

    def __init__(self, text: bytes) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text.decode())}
        self.samples: list[Sample] = [sample for family in self.families.values() for sample in family.samples]

    def values(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Return the values of a series that has these labels, by its others in their order by name."""
        return {
            tuple(value for label, value in sorted(sample.labels.items()) if label not in labels): sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def one(self, name: str, **labels: str) -> float | None:
        """Return the value of a series that there is once; None if there is none."""
        values = list(self.values(name, **labels).values())
        assert len(values) <= 1
        return values[0] if values else None


UNHELD: Final = UnheldUse(type="gpu", minor=0, id=a100(0).uuid, namespace="ns", pod="b", pod_uid="uid-b", memory="60Gi")


async def exporter(probe: Probe, proc: Path, pods: Pods | None = None) -> Exporter:
    created = Exporter(inventory=probe.inventory, proc_root=proc)
    created.readings = {NODE: replace(await probe.read(), use=NodeUse(unheld=(UNHELD,)))}
    created.usage = pods
    return created


async def scrape(exporter: Exporter) -> Scraped:
    return Scraped(await exporter.render())


async def render_later(exporter: Exporter) -> bytes:
    await asyncio.sleep(0.1)
    return await exporter.render()


def process(proc: Path, pid: int, cgroup: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")


MIG: Final = MigDevice(uuid="MIG-1", profile="1g.10gb", gpu_instance=7)


def everything() -> list[Gpu]:
    """Return cards that together have every series."""
    hot = replace(
        a100(0),
        temperature=91,
        power=399_500,
        throttle_reasons=SW_POWER_CAP,
        processes=[Process(pid=10, used=MIB), Process(pid=11, used=2 * MIB), Process(pid=12, used=4 * MIB)],
    )
    return [hot, replace(a100(1), mig_mode=True, migs=[MIG])]


def pods_of(fixture: NvmlFixture) -> Pods:
    card = fixture.gpus[0].uuid
    holder = Holder(namespace="ns", pod="a", container="main", card=card, share=0.5, text="half", memory=40 * GI)
    # Two shares by claim, of which two containers have one together.
    by_claim = Holder(namespace="ns", pod="c", container="main", card=card, share=0.1, text="tenth", memory=8 * GI)
    shares = [("main", "c/0"), ("side", "c/0"), ("main", "c/1")]
    claimed = [replace(by_claim, container=container, claimed=key) for container, key in shares]
    return Pods(
        listed=(holder, *claimed), names={UID: PodNames(namespace="ns", name="a", containers={CONTAINER: "main"})}
    )


@pytest.fixture
async def scraped(machine: Machine, agent: Start, tmp_path: Path) -> Scraped:
    process(tmp_path / "proc", 10, f"/kubepods/pod{UID}/{CONTAINER}")
    process(tmp_path / "proc", 11, f"/kubepods/pod{UID}/{CONTAINER}")
    process(tmp_path / "proc", 12, "/user.slice")
    fixture = machine(*everything())
    probe = agent(fixture)
    created = await exporter(probe, tmp_path / "proc", pods_of(fixture))
    created.claims = claims = CallMetrics()
    claims.set_prepared(NODE, 1)
    with claims.timed(PREPARE):
        fixture.xid(0, 94)
    probe.fault_event()
    TAKE_BACKS.labels("argocd").inc()
    refusal = ApiError(403, "Forbidden", 'admission webhook "x.example.com" denied the request: no')
    created.refused.answered("PATCH", "/api/v1/nodes/a", refusal)
    return await scrape(created)


def documented() -> dict[str, tuple[frozenset[str], dict[str, set[str]]]]:
    """Return the labels of each series in the reference, and the values that the document has for some of them."""
    values = {
        name: {label: set(re.findall(r"`(\w+)`", listed))}
        for name, label, listed in VALUES.findall(DOCUMENT.read_text())
    }
    assert values
    rows = LABELS.findall(REFERENCE.read_text().partition("\n## The agent\n")[2])
    return {name: (frozenset(re.findall(r"`(\w+)`", cell)), values.get(name, {})) for name, cell in rows}


async def test_the_document_lists_every_series_with_its_labels(scraped: Scraped) -> None:
    exposed: dict[str, list[Sample]] = {}
    for sample in scraped.samples:
        if sample.name.startswith("berth_") and not sample.name.endswith(("_bucket", "_sum")):
            exposed.setdefault(sample.name.removesuffix("_count"), []).append(sample)
    assert exposed.keys() == documented().keys()
    for name, (labels, values) in documented().items():
        assert {frozenset(sample.labels) for sample in exposed[name]} == {labels}, name
        for label, listed in values.items():
            assert {sample.labels[label] for sample in exposed[name]} == listed, name


async def test_counters_end_in_total_and_the_others_in_no_suffix_of_a_counter(scraped: Scraped) -> None:
    own = {name: family for name, family in scraped.families.items() if name.startswith("berth_")}
    assert {name for name, family in own.items() if family.type == "counter"} == {
        "berth_device_take_backs",
        "berth_gpu_ecc_errors",
        "berth_gpu_xid_errors",
    }
    assert all(family.documentation for family in own.values())


async def test_a_hot_card_shows_it_in_base_units(scraped: Scraped) -> None:
    hot = {"UUID": a100(0).uuid, "node": NODE, "minor": "0", "model": "NVIDIA A100-SXM4-80GB"}
    assert scraped.one("berth_gpu_temperature_celsius", **hot) == 91
    assert scraped.one("berth_gpu_power_watts", **hot) == 399.5
    assert scraped.one("berth_gpu_memory_bandwidth_bytes_per_second", **hot) == 2_039_040_000_000
    assert scraped.one("berth_gpu_throttle_reason", **hot, reason="sw_power_cap") == 1
    assert scraped.one("berth_gpu_throttle_reason", **hot, reason="gpu_idle") == 0
    assert scraped.one("berth_gpu_xid_errors_total", **hot, xid="94") == 1
    assert scraped.one("berth_gpu_clock_hertz", **hot, clock="memory") == 1_593_000_000
    assert scraped.one("berth_gpu_encoders", **hot) == 0


async def test_pods_and_their_processes_are_named(scraped: Scraped) -> None:
    held = {"UUID": a100(0).uuid, "namespace": "ns", "pod": "a", "container": "main"}
    assert scraped.one("berth_gpu_pod_info", **held, share="half", mig_uuid="", GPU_I_ID="") == 0.5
    assert scraped.one("berth_gpu_pod_share_bytes", UUID=a100(0).uuid, namespace="ns", pod="a") == 40 * GI
    assert scraped.one("berth_gpu_pod_share_bytes", UUID=a100(0).uuid, namespace="ns", pod="c") == 16 * GI
    assert scraped.values("berth_gpu_unheld_memory_bytes", UUID=a100(0).uuid, namespace="ns", pod="b") != {}
    assert list(scraped.values("berth_gpu_unheld_memory_bytes").values()) == [60 * GI]
    memory = "berth_gpu_process_memory_bytes"
    assert scraped.one(memory, **held) == 3 * MIB
    assert scraped.one(memory, UUID=a100(0).uuid, namespace="", pod="", container="") == 4 * MIB
    assert len(scraped.values(memory)) == 2


async def test_a_lost_card_is_there_and_unhealthy_and_measures_nothing(machine: Machine, agent: Start) -> None:
    fixture = machine(t4(0), t4(1))
    probe = agent(fixture)
    await probe.read()
    fixture.lose(1)
    scraped = await scrape(await exporter(probe, Path("/proc")))
    lost = fixture.gpus[1].uuid
    of_it = {sample.name for sample in scraped.samples if sample.labels.get("UUID") == lost}
    assert scraped.one("berth_gpu_healthy", UUID=lost) == 0
    assert of_it == {
        *("berth_gpu_info", "berth_gpu_healthy", "berth_gpu_memory_total_bytes", "berth_gpu_multiprocessors"),
        *("berth_gpu_memory_bandwidth_bytes_per_second", "berth_gpu_encoders", "berth_gpu_decoders"),
    }
    assert scraped.one("berth_gpu_temperature_celsius", UUID=fixture.gpus[0].uuid) == 34


async def test_what_was_rendered_serves_all_who_ask_within_a_second(machine: Machine, agent: Start) -> None:
    created = await exporter(agent(machine(t4(0))), Path("/proc"))
    texts = await asyncio.gather(*(created.render() for _ in range(100)))
    assert {id(text) for text in texts} == {id(texts[0])}
    async with asyncio.timeout(PROMPT):
        while await render_later(created) is texts[0]:
            pass


async def test_a_call_that_hangs_in_the_driver_delays_no_scrape_for_long(machine: Machine, agent: Start) -> None:
    probe = agent(machine(t4(0)))
    created = await exporter(probe, Path("/proc"))
    driver = threading.Event()
    hanging = asyncio.ensure_future(probe.inventory._session.run(driver.wait))
    async with asyncio.timeout(PROMPT):
        first, second = await asyncio.gather(scrape(created), scrape(created))
    assert first.one("berth_gpu_info") == second.one("berth_gpu_info") == 1
    assert first.one("berth_gpu_temperature_celsius") is None
    assert first.one("berth_gpu_sample_timestamp_seconds") is None
    driver.set()
    await hanging
    async with asyncio.timeout(PROMPT):
        while Scraped(await render_later(created)).one("berth_gpu_temperature_celsius") != 34:
            pass


async def test_without_what_pods_hold_nobody_is_named(machine: Machine, agent: Start, tmp_path: Path) -> None:
    process(tmp_path / "proc", 10, "/user.slice")
    probe = agent(machine(replace(t4(0), processes=[Process(pid=10, used=MIB)])))
    scraped = await scrape(await exporter(probe, tmp_path / "proc"))
    assert scraped.values("berth_gpu_pod_info") == scraped.values("berth_gpu_process_memory_bytes") == {}


async def test_a_simulated_fleet_has_its_cards_and_static_facts(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("nodes: [{names: 'node-[0-9]', profile: t4, gpus: 2, rdma: 1}]")
    inventory = SimulatedInventory(path=fleet)
    created = Exporter(inventory=inventory, proc_root=Path("/proc"))
    created.readings = await inventory.read()
    scraped = await scrape(created)
    assert len({sample.labels["UUID"] for sample in scraped.samples if "UUID" in sample.labels}) == 20
    assert len(scraped.values("berth_gpu_multiprocessors", node="node-3")) == 2
    assert {sample.value for sample in scraped.samples if sample.name == "berth_gpu_multiprocessors"} == {40}
    assert scraped.values("berth_gpu_memory_used_bytes") == {}
    assert scraped.values("berth_gpu_sample_timestamp_seconds") == {}


@pytest.mark.parametrize("code", [GPU_IS_LOST, 3])
async def test_no_value_is_0_for_what_was_not_measured(machine: Machine, agent: Start, code: int) -> None:
    card = t4(0)
    card.fails["nvmlDeviceGetPowerUsage"] = code
    scraped = await scrape(await exporter(agent(machine(card)), Path("/proc")))
    assert scraped.one("berth_gpu_power_watts") is None
    assert scraped.one("berth_gpu_power_limit_watts") == 70


async def test_clients_that_go_begin_no_further_rendering(tmp_path: Path) -> None:
    begun, may_end = threading.Semaphore(0), threading.Event()

    class Slow(Collector):
        def collect(self) -> Iterator[Metric]:
            begun.release()
            may_end.wait(PROMPT)
            return iter(())

    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("nodes: [{names: 'a', profile: t4, gpus: 1}]")
    created = Exporter(inventory=SimulatedInventory(path=fleet), proc_root=Path("/proc"))
    created.claims = Slow()
    first = asyncio.create_task(created.render())
    await asyncio.to_thread(begun.acquire)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(created.render())
    assert not await asyncio.to_thread(begun.acquire, timeout=0.3)
    may_end.set()
    assert await second
