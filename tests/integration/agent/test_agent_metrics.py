"""Metrics of an agent next to a kubelet, read over HTTP as Prometheus does."""

import contextlib
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from berth_api import names
from devcluster import Arena
from tests.nvml.fixture import HW_THERMAL_SLOWDOWN, MIB, NvmlFixture, Process, a100
from tests.stand_ins.pod_resources import PodResourcesServer

GPU = "nvidia.com/gpu"
CARDS = [a100(0).uuid, a100(1).uuid]
CONTAINER = "c0ffee" * 10 + "abcd"
SECONDS = 60.0
"""Longest time for a start or a change on a busy machine."""
HALF = (
    f'{{"gpu":[{{"minor":1,"id":"{CARDS[1]}","resources":'
    '{"kubernetes.io/gpu-core":"50","kubernetes.io/gpu-memory":"40Gi","kubernetes.io/gpu-memory-ratio":"50"}}]}'
)

Series = dict[str, float]
Start = Callable[..., Any]


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
    return number


def scrape(port: int, name: str, **labels: str) -> Series:
    """Return the values of a series with these labels, by pod and container."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {
        f"{sample.labels.get('pod', '')}/{sample.labels.get('container', '')}": sample.value
        for sample in samples
        if labels.items() <= sample.labels.items()
    }


def eventually(arena: Arena, port: int, expected: Series, name: str, **labels: str) -> None:
    """Wait until a series has these values; the agent may not listen yet."""

    def has() -> bool:
        with contextlib.suppress(URLError, ConnectionError):
            return scrape(port, name, **labels) == expected
        return False

    arena.wait(has, deadline=SECONDS, what=f"{name} {labels} to be {expected}")


def process(proc: Path, pid: int, cgroup: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")


def test_prometheus_reads_what_cards_measure_and_who_holds_them(
    arena: Arena, start_nvml: Start, resources: PodResourcesServer, port: int, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    limits = {GPU: "1"}
    whole = arena.pod("whole", limits=limits, requests=limits, nodeName=node)
    half = arena.pod("half", nodeName=node)
    half["metadata"].setdefault("annotations", {}).update(
        {names.ALLOCATED: HALF, f"main{names.VISIBLE_SUFFIX}": CARDS[1]}
    )
    uid = arena.create([whole])[0]["metadata"]["uid"]
    arena.create([half])
    resources.given = {(arena.namespace, "whole", "main"): {GPU: [CARDS[0]]}}
    process(tmp_path / "proc", 10, f"/kubepods/pod{uid}/{CONTAINER}")
    process(tmp_path / "proc", 11, "/user.slice")
    cards = [a100(0), a100(1)]
    cards[0].processes = [Process(pid=10, used=4 * MIB), Process(pid=11, used=MIB)]
    fixture = NvmlFixture(tmp_path, gpus=cards)
    options = ["--pod-resources-socket", str(resources.socket), "--proc-root", str(tmp_path / "proc")]
    options += ["--checkpoint", str(tmp_path / "checkpoint.json"), "--metrics-address", "127.0.0.1"]
    agent = start_nvml(node, fixture, *options, "--metrics-port", str(port))

    own = {"node": node, "UUID": CARDS[0], "minor": "0", "model": "NVIDIA A100-SXM4-80GB"}
    eventually(arena, port, {"whole/main": 1.0}, "berth_gpu_pod_info", **own, namespace=arena.namespace, share="whole")
    eventually(arena, port, {"half/main": 0.5}, "berth_gpu_pod_info", UUID=CARDS[1], share="core 50, memory 40Gi")
    eventually(arena, port, {"whole/": 4.0 * MIB, "/": 1.0 * MIB}, "berth_gpu_process_memory_bytes", **own)
    assert scrape(port, "berth_gpu_temperature_celsius", **own) == {"/": 34.0}

    cards[0].temperature, cards[0].throttle_reasons = 93, HW_THERMAL_SLOWDOWN
    fixture.write()
    eventually(arena, port, {"/": 93.0}, "berth_gpu_temperature_celsius", **own)
    eventually(arena, port, {"/": 1.0}, "berth_gpu_throttle_reason", **own, reason="hw_thermal_slowdown")
    fixture.xid(0, 79)
    eventually(arena, port, {"/": 1.0}, "berth_gpu_xid_errors_total", **own, xid="79")
    eventually(arena, port, {"/": 0.0}, "berth_gpu_healthy", **own)
    assert agent.stop() == 0, agent.log
