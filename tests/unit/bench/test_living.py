"""The benchmark with arrivals and departures: streams, the audit, a small cell, and the figures by hand."""

import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from berth_operator.core.decision.policy import Policy
from tests import builders
from tests.bench import living, living_results, stream
from tests.bench.living import Cell
from tests.bench.living_results import Outcome, Row, Wait, Waits
from tests.bench.occupancy import AuditError, Occupancy
from tests.bench.openb import NODES, Machine, Task, Trace
from tests.bench.simulation import Pod, Run, Simulation
from tests.bench.stream import Arrival, Mix

ROOT = Path(__file__).parents[3]
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,scheduled_time,deletion_time\n"
NODE = Machine(name="m", cpu=64_000, memory=262_144, cards=2, model="T4")


def rng(seed: int) -> random.Random:
    return random.Random(seed)


def task(cards: int = 1, milli: int = 1000, cpu: int = 1_000, models: tuple[str, ...] = ()) -> Task:
    return Task(cpu=cpu, memory=1_000, cards=cards, milli=milli, models=models)


# --- streams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mix",
    [
        pytest.param(Mix(tasks=(task(), task(milli=500))), id="exponential lifetimes"),
        pytest.param(Mix(tasks=(task(), task(cards=2)), lifetimes=(1.8, 0.2)), id="lifetimes of a trace"),
    ],
)
@pytest.mark.parametrize("at", [0.0, 0.4, 2.0])
def test_the_load_is_the_offered_one_at_any_time(mix: Mix, at: float) -> None:
    arrivals = list(stream.arrivals([(0.0, mix)], load=0.8, capacity=4_000_000, end=3.0, rng=rng(1)))
    running = sum(each.task.size for each in arrivals if each.at <= at < each.at + each.lifetime)
    assert running == pytest.approx(3_200_000, rel=0.05)


def test_the_mix_changes_when_it_should() -> None:
    before, after = Mix(tasks=(task(),)), Mix(tasks=(task(cards=2),))
    arrivals = list(stream.arrivals([(0.0, before), (1.0, after)], load=0.5, capacity=100_000, end=2.0, rng=rng(1)))
    assert {each.task.cards for each in arrivals if each.at < 1.0} == {1}
    assert {each.task.cards for each in arrivals if each.at >= 1.0} == {2}
    assert [each.at for each in arrivals] == sorted(each.at for each in arrivals)


def test_lifetimes_of_a_trace_are_cut_and_one_on_average() -> None:
    trace = Trace(name="t", machines=(NODE,), tasks=(task(), task(milli=500)), seconds=(43_200.0, 1e9))
    mix = stream.mix(trace, timed=True)
    assert mix.lifetimes == pytest.approx((2 / 3, 4 / 3))
    with pytest.raises(ValueError, match="no times"):
        stream.mix(Trace(name="t", machines=(NODE,), tasks=(task(),)), timed=True)


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


def test_what_ended_is_free_for_the_audit() -> None:
    occupancy = Occupancy([NODE])
    for uid in ("a", "b"):
        occupancy.take(uid, task(cards=2), "m", [builders.grant(0), builders.grant(1)])
        assert occupancy.size == 2000
        occupancy.end(uid)
    assert occupancy.size == 0


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


def test_waits_are_of_pods_that_arrived_while_it_was_measured() -> None:
    pods = [
        Pod(task(cards=8), at=0.5, lifetime=1.0),
        Pod(task(cards=8), at=1.5, lifetime=1.0),
        Pod(task(cards=8, models=("T4",)), at=2.0, lifetime=1.0, placed=2.5),
        Pod(task(cards=8), at=2.0, lifetime=1.0, placed=2.0),
    ]
    outcome = living_results.outcome(Run(pods=pods, allocated=500.0), capacity=1000, start=1.0, end=4.0)
    assert outcome.allocated == 50
    assert outcome.sizes == {"8": Waits(3, [2.5, 0.5]), "constrained": Waits(1, [0.5])}


def test_policies_see_the_same_pods_and_allocate_about_what_is_offered() -> None:
    mix = tuple(task(milli=milli, cpu=cpu) for milli, cpu in ((810, 3_000), (470, 8_000), (1000, 11_000), (190, 4_000)))
    machines = [Machine(name=f"m{number}", cpu=96_000, memory=262_144, cards=8, model="T4") for number in range(4)]
    pods = list(
        stream.arrivals([(0.0, Mix(tasks=mix))], load=0.8, capacity=32_000, end=3.0, rng=rng(1)),
    )
    allocated = {}
    for name in living.POLICIES:
        known = Trace(name="t", machines=tuple(machines), tasks=mix)
        run = Simulation(machines, [(0.0, living.policy(name, known, 1))], 1).run(pods, start=1.0, end=3.0)
        assert [each.at for each in run.pods] == [each.at for each in pods]
        allocated[name] = run.allocated / 32_000
    assert statistics.fmean(allocated.values()) == pytest.approx(0.8, abs=0.1)


def test_large_pods_seldom_wait_while_others_come_and_go() -> None:
    mix = (task(milli=500, cpu=5_000),) * 60 + (task(cpu=10_000),) * 60 + (task(cards=8, cpu=80_000),) * 2
    machines = [Machine(name=f"m{number}", cpu=96_000, memory=262_144, cards=8, model="T4") for number in range(24)]
    pods = list(stream.arrivals([(0.0, Mix(tasks=mix))], load=0.85, capacity=192_000, end=4.0, rng=rng(1)))
    run = Simulation(machines, [(0.0, Policy())], 1).run(pods, start=1.0, end=4.0)
    large = living_results.outcome(run, capacity=192_000, start=1.0, end=4.0).sizes["8"]
    # 20 %; with empty nodes worth nothing it is 60 %.
    assert len(large.waited) < 0.4 * large.pods


def test_a_scaled_fleet_has_its_part_of_each_type() -> None:
    machines = [
        Machine(name=f"{model}{number}", cpu=96_000, memory=1_000, cards=8, model=model)
        for model, count in (("G2", 12), ("T4", 6))
        for number in range(count)
    ]
    models = [each.model for each in living.scaled(machines, 3)]
    assert (models.count("G2"), models.count("T4")) == (4, 2)


def test_phases_are_of_one_trace_or_of_two() -> None:
    cell = Cell(workload="a", load=0.9, policy="ours", seed=1, warm=1.0, horizon=2.0)
    assert cell.phases() == [(0.0, "a")]
    changing = Cell(workload="a>b", load=0.9, policy="ours", seed=1, warm=1.0, horizon=2.0)
    assert changing.phases() == [(0.0, "a"), (2.0, "b")]


# --- figures ----------------------------------------------------------------------------------------------------


def row(policy: str, allocated: float, mean: float, *, load: float = 0.9, pods: int = 50) -> Row:
    waits = {"8": Wait(pods=pods, part=10.0, mean=mean, p50=0.0, p99=0.5)}
    return Row(workload="t", load=load, policy=policy, allocated=allocated, backlog=1.0, took=0.5, waits=waits)


def test_the_summary_by_hand() -> None:
    table = [
        row("fgd", 90.0, 0.1),
        row("bestfit", 89.0, 0.05),
        row("ours", 89.5, 0.2),
        row("fgd", 79.0, 0.0, load=0.8),
        row("bestfit", 79.5, 0.0, load=0.8),
        row("ours", 79.7, 0.9, load=0.8, pods=3),
    ]
    summary = living_results.summary(table)
    assert summary["cells"] == 2
    # FGD allocates more on average: 84.5 against 84.25.
    assert summary["mean_ahead"] == pytest.approx(0.1)
    assert summary["worst_allocated"] == pytest.approx(-0.5)
    # Three pods are too few to compare.
    assert summary["worst_wait"] == pytest.approx(0.15)


def test_rows_are_means_over_seeds_and_pool_their_pods() -> None:
    cell = Cell(workload="t", load=0.9, policy="ours", seed=1)
    outcomes = [
        Outcome(allocated=80.0, backlog=2.0, took=0.1, sizes={"8": Waits(99, [])}),
        Outcome(allocated=90.0, backlog=4.0, took=0.3, sizes={"8": Waits(1, [0.5])}),
    ]
    [pooled] = living_results.rows([(cell, each) for each in outcomes])
    assert (pooled.allocated, pooled.backlog) == (85.0, 3.0)
    assert pooled.waits == {"8": Wait(pods=100, part=1.0, mean=0.005, p50=0.0, p99=0.5)}


def test_the_last_line_is_one_object_and_baselines_are_kept(tmp_path: Path) -> None:
    nodes = "".join(f"n{number},96000,393216,8,G2\n" for number in range(8))
    (tmp_path / NODES).write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{nodes}")
    pods = "".join(f"p{number},8000,10,1,{(470, 810, 1000)[number % 3]},,0,0,600\n" for number in range(9))
    (tmp_path / "openb_pod_list_mine.csv").write_text(PODS + pods)
    command = [sys.executable, "-m", "tests.bench.living", "--quick", "--workload", "mine+times", "--load", "0.8"]
    command += ["--policy", "ours", "--policy", "bestfit", "--jobs", "1", "--cache", str(tmp_path / "cache")]
    command += ["--chart", str(tmp_path / "chart.png")]
    lines = []
    for _ in range(2):
        environment = {"BERTH_TRACE_DIR": str(tmp_path), "PATH": ""}
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        lines.append(json.loads(ended.stdout.splitlines()[-1]))
    assert lines[0].keys() == {"bench", "cells", "mean_ahead", "worst_allocated", "worst_wait", "p50_ms", "table"}
    assert (lines[0]["bench"], lines[0]["cells"]) == ("living", 1)
    assert {each["policy"] for each in lines[0]["table"]} == {"ours", "bestfit"}
    assert lines[0]["worst_allocated"] == lines[1]["worst_allocated"]
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert (tmp_path / "chart.png").stat().st_size > 1000
