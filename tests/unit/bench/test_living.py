"""The benchmark with arrivals and departures: streams, the audit, a small cell, and manually computed figures."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from berth_operator.core.decision.policy import Policy
from tests.bench.decisions import living_results, stream
from tests.bench.decisions.occupancy import AuditError, Occupancy
from tests.bench.decisions.openb import NODES, Machine, Task
from tests.bench.decisions.simulation import Simulation
from tests.bench.decisions.stream import Arrival, Mix
from tests.objects import builders

ROOT = Path(__file__).parents[3]
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,scheduled_time,deletion_time\n"
NODE = Machine(name="m", cpu=64_000, memory=262_144, cards=2, model="T4")


def rng(seed: int) -> random.Random:
    return random.Random(seed)


def task(cards: int = 1, milli: int = 1000, cpu: int = 1_000, models: tuple[str, ...] = ()) -> Task:
    return Task(cpu=cpu, memory=1_000, cards=cards, milli=milli, models=models)


# --- the audit --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "more", "minor"),
    [
        pytest.param(task(milli=600), task(milli=500), 0, id="a card above 100"),
        pytest.param(task(cpu=60_000), task(cpu=5_000), 1, id="too little cpu"),
        pytest.param(task(), task(models=("G2",)), 1, id="another model"),
        pytest.param(task(), task(cards=2), 1, id="fewer cards than requested"),
    ],
)
def test_the_audit_finds_what_a_node_cannot_hold(held: Task, more: Task, minor: int) -> None:
    occupancy = Occupancy([NODE])
    occupancy.take("a", held, "m", [builders.grant(0)])
    with pytest.raises(AuditError):
        occupancy.take("b", more, "m", [builders.grant(minor)])


# --- the simulation ---------------------------------------------------------------------------------------------


def test_pods_wait_in_the_queue_and_are_placed_when_others_end() -> None:
    arrivals = [
        Arrival(at=0.0, lifetime=4.0, task=task(cards=2)),
        Arrival(at=1.0, lifetime=1.0, task=task(cards=2)),
        Arrival(at=2.0, lifetime=9.0, task=task()),
        Arrival(at=3.0, lifetime=9.0, task=task(models=("G2",))),
    ]
    run = Simulation([NODE], [(0.0, Policy())], 1).run(arrivals, start=2.0, end=6.0)
    # The third is placed as soon as the second has ended: the first of the queue is decided first.
    assert [each.placed for each in run.pods] == [0.0, 4.0, 5.0, None]
    # Two cards until 5, one until 6; two, one and one wait from 2, 3 and 2 on.
    assert run.allocated == pytest.approx((3 * 2000 + 1000) / 4)
    assert run.waiting == pytest.approx((2 * 2000 + 3 * 1000 + 3 * 1000) / 4)


def test_large_pods_seldom_wait_while_others_come_and_go() -> None:
    mix = (task(milli=500, cpu=5_000),) * 60 + (task(cpu=10_000),) * 60 + (task(cards=8, cpu=80_000),) * 2
    machines = [Machine(name=f"m{number}", cpu=96_000, memory=262_144, cards=8, model="T4") for number in range(24)]
    pods = list(stream.arrivals([(0.0, Mix(tasks=mix))], load=0.85, capacity=192_000, end=4.0, rng=rng(1)))
    run = Simulation(machines, [(0.0, Policy())], 1).run(pods, start=1.0, end=4.0)
    large = living_results.outcome(run, capacity=192_000, start=1.0, end=4.0).sizes["8"]
    # 20 %; with empty nodes worth nothing it is 60 %.
    assert len(large.waited) < 0.4 * large.pods


def test_the_last_line_is_one_object_and_baselines_are_kept(tmp_path: Path) -> None:
    nodes = "".join(f"n{number},96000,393216,8,G2\n" for number in range(8))
    (tmp_path / NODES).write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{nodes}")
    pods = "".join(f"p{number},8000,10,1,{(470, 810, 1000)[number % 3]},,0,0,600\n" for number in range(9))
    (tmp_path / "openb_pod_list_mine.csv").write_text(PODS + pods)
    command = [
        sys.executable,
        "-m",
        "tests.bench.decisions.living",
        "--quick",
        "--workload",
        "mine+times",
        "--load",
        "0.8",
    ]
    command += ["--policy", "ours", "--policy", "bestfit", "--jobs", "1", "--cache", str(tmp_path / "cache")]
    lines = []
    for more in (["--chart", str(tmp_path / "chart.png")], []):
        # Without a home, the chart's library would list the machine's fonts again.
        environment = {"BERTH_TRACE_DIR": str(tmp_path), "PATH": "", "HOME": str(Path.home())}
        ended = subprocess.run([*command, *more], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        lines.append(json.loads(ended.stdout.splitlines()[-1]))
    assert lines[0].keys() == {"bench", "cells", "mean_ahead", "worst_allocated", "worst_wait", "p50_ms", "table"}
    assert (lines[0]["bench"], lines[0]["cells"]) == ("living", 1)
    assert {each["policy"] for each in lines[0]["table"]} == {"ours", "bestfit"}
    assert lines[0]["worst_allocated"] == lines[1]["worst_allocated"]
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert (tmp_path / "chart.png").stat().st_size > 1000
