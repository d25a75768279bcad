"""The quality benchmark: FGD by its definition, manually computed baselines, a small replay."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api.request.model import ANY_MODEL
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.fleet.fleet import Fleet
from tests.bench.decisions import baselines, openb, quality
from tests.bench.decisions.baselines import Kind
from tests.bench.decisions.openb import Machine, Task, Trace
from tests.objects import builders
from tests.objects.builders import waiting

ROOT = Path(__file__).parents[3]
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def rng(seed: int) -> random.Random:
    return random.Random(seed)


def kind(milli: int, *by_cpu: tuple[int, float], cards: int = 1) -> Kind:
    often = np.concatenate([[0.0], np.cumsum([part for _, part in by_cpu])])
    return Kind(cards=cards, milli=milli, model=ANY_MODEL, cpus=np.array([cpu for cpu, _ in by_cpu]), often=often)


def machine(name: str = "m", cpu: int = 64_000, cards: int = 2, model: str = "G2") -> Machine:
    return Machine(name=name, cpu=cpu, memory=262_144, cards=cards, model=model)


def task(cpu: int = 1_000, cards: int = 1, milli: int = 500, models: tuple[str, ...] = ()) -> Task:
    return Task(cpu=cpu, memory=1_000, cards=cards, milli=milli, models=models)


# --- FGD --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu", "left", "accepted", "kinds", "expected"),
    [
        pytest.param(9, [700, 300], True, [kind(500, (4, 1.0))], 300, id="what is too small for the pod"),
        pytest.param(3, [700, 300], True, [kind(500, (4, 1.0))], 1000, id="too little cpu: everything"),
        pytest.param(9, [700, 300], False, [kind(500, (4, 1.0))], 1000, id="another model: everything"),
        pytest.param(9, [1000, 300], True, [kind(1000, (4, 1.0), cards=2)], 1300, id="too few cards: everything"),
        pytest.param(9, [1000, 1000], True, [kind(1000, (4, 1.0), cards=2)], 0, id="nothing is too small"),
        pytest.param(
            9, [700, 300], True, [kind(500, (4, 0.5), (10, 0.25))], 650, id="the rest has no cards or no capacity"
        ),
        pytest.param(9, [700, -1], True, [kind(500, (4, 1.0))], 0, id="slots without a card"),
    ],
)
def test_fragments_by_hand(cpu: int, left: list[int], accepted: bool, kinds: list[Kind], expected: float) -> None:
    accepts = np.full((1, len(kinds)), accepted)
    fragments = baselines.fragments(np.array([cpu]), np.array([left]), accepts, kinds)
    assert fragments.tolist() == [pytest.approx(expected)]


def test_typical_classes_are_the_most_frequent() -> None:
    tasks = [task(cpu=1)] * 60 + [task(cpu=2)] * 20 + [task(cards=0, milli=0)] * 15 + [task(milli=700)] * 5
    [typical] = baselines.typical(tasks)
    assert (typical.cards, typical.milli, typical.cpus.tolist()) == (1, 500, [1, 2])
    assert typical.often.tolist() == pytest.approx([0, 60 / 95, 80 / 95])


def test_fgd_takes_the_card_where_fragments_grow_least() -> None:
    fleet = openb.fleet([machine()], rng(1))
    policy = baselines.policy("fgd", [task(milli=500)] * 9 + [task(milli=300)], 1)
    slots = []
    for number, milli in enumerate((300, 500, 500)):
        placed = decide(fleet, waiting(f"p{number}", task(milli=milli).request), policy)
        assert isinstance(placed, Placement)
        slots += [each.minor for each in placed.grants]
        fleet.charge(placed.charge)
    # A share of 300 spoils a card for one of 500 only if both halves of the card were still free.
    assert slots[1] == slots[2] != slots[0]


tasks = st.builds(
    task,
    cpu=st.sampled_from([1_000, 4_000, 9_000, 30_000]),
    milli=st.sampled_from([100, 300, 470, 810, 1000]),
    models=st.sampled_from([(), ("G2",), ("T4",)]),
)


@settings(deadline=None, max_examples=25)
@given(sample=st.lists(tasks, min_size=1, max_size=25), seed=st.integers(0, 3))
def test_what_fgd_keeps_equals_what_it_would_work_out(sample: list[Task], seed: int) -> None:
    machines = [machine("a"), machine("b", cards=4), machine("c", cpu=8_000, cards=1, model="T4")]
    fleet = openb.fleet(machines, rng(seed))
    kept = baselines.Fgd(baselines.typical(sample))
    for number, sampled in enumerate(sample):
        fresh = baselines.Fgd(baselines.typical(sample))
        every = np.ones(len(fleet.names), np.bool_)
        assert kept.score(fleet, sampled.request, every).tolist() == fresh.score(fleet, sampled.request, every).tolist()
        assert kept.slots.tolist() == fresh.slots.tolist()
        _charge_anywhere(fleet, sampled, number)


def _charge_anywhere(fleet: Fleet, charged: Task, number: int) -> None:
    placed = decide(fleet, waiting(f"p{number}", charged.request), baselines.policy("random", [], number))
    if isinstance(placed, Placement):
        fleet.charge(placed.charge)


# --- the baselines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("bestfit", "small", id="bestfit: least is left"),
        pytest.param("dotprod", "small", id="dotprod: least was free"),
        pytest.param("packing", "used", id="packing: a card in use"),
        pytest.param("clustering", "used", id="clustering: pods of its kind"),
    ],
)
def test_which_node_a_share_goes_to(name: str, expected: str) -> None:
    machines = [machine("small", cpu=8_000, cards=1), machine("used", cards=8), machine("large", cards=8)]
    fleet = openb.fleet(machines, rng(1))
    policy = baselines.policy(name, [], 1)
    half = builders.grant(3, core=50, ratio=50)
    fleet.charge(builders.charge("held", half, node="used"))
    placed = decide(fleet, waiting("p", task(milli=300).request), policy)
    assert isinstance(placed, Placement)
    assert placed.node == expected
    if expected == "used":
        assert placed.grants[0].minor == 3


def test_a_baseline_takes_the_first_of_equal_nodes_whatever_the_rule_of_berth_is() -> None:
    made = openb.fleet([machine(name) for name in "abcd"], rng(1))
    outcomes = [decide(made, waiting(f"p{number}"), baselines.policy("firstfit", [], 1)) for number in range(20)]
    assert {outcome.node for outcome in outcomes if isinstance(outcome, Placement)} == {made.names[0]}


# --- the whole program ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", quality.POLICIES)
def test_no_policy_gives_out_more_than_there_is(name: str) -> None:
    mix = [task(cpu=cpu, milli=milli) for cpu, milli in ((3_000, 810), (8_000, 470), (11_000, 1000), (4_000, 190))]
    machines = tuple(machine(f"m{number}", cpu=96_000, cards=8) for number in range(3))
    trace = Trace(name="t", machines=machines, tasks=(*mix * 8, task(cpu=20_000, cards=2, milli=1000)))
    run = quality.replay(trace, name, 1)
    last = run.curve[max(run.curve)]
    assert 60 < last <= 100
    assert max(run.curve.values()) == last


def test_the_last_line_is_one_object(tmp_path: Path) -> None:
    rows = "".join(f"n{number},96000,393216,8,G2\n" for number in range(3))
    (tmp_path / openb.NODES).write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{rows}")
    pods = "".join(f"p{number},8000,10,1,{(470, 810, 1000)[number % 3]},\n" for number in range(40))
    (tmp_path / "openb_pod_list_mine.csv").write_text(PODS + pods)
    command = [
        sys.executable,
        "-m",
        "tests.bench.decisions.quality",
        "--trace",
        str(tmp_path / "openb_pod_list_mine.csv"),
    ]
    command += ["--seeds", "42-43", "--policy", "ours", "--policy", "fgd"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result.keys() == {"bench", "traces", "p50_ms"}
    assert result["bench"] == "quality"
    assert result["traces"].keys() == {"mine"}
    assert result["traces"]["mine"].keys() == {"ours", "fgd"}
    assert result["traces"]["mine"]["ours"].keys() == {"90", "100", "130"}
    assert 0 < result["p50_ms"] < 100
