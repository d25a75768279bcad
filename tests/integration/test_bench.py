"""Each benchmark runs to its end with small sizes on one cluster, so that it keeps working. Figures mean nothing."""

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from devcluster import Arena
from tests.bench import (
    churn,
    claims_hold,
    core,
    election,
    extender,
    kubectl_berth,
    memory,
    restart,
    throughput,
    track,
    wake,
    watched,
)
from tests.bench.track import Opener, Track

Sizes = dict[str, int | str]
Result = Callable[..., dict[str, object]]

NODES = 2
CALM = 0.3
NONE = 0.0
KINDS = ("taint_removed", "anti_affinity_pod_gone", "claim_bound")
"""Of eight: with what is prepared and cleaned, with a holder, and with objects that only one kind has."""
FIGURES = {"pods_per_s", "cpu_ms_per_pod", "rss_mb", "requests_per_pod"}


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Track]:
    """Open a track of the module's own."""
    with track.opened(NODES) as opened:
        yield opened


@pytest.fixture
def open_track(own_cluster: Track) -> Iterator[Callable[[float], Opener]]:
    """Return an opener of the module's track, with a namespace of the test's own and any number of seconds of calm."""
    arena = Arena(cluster=own_cluster.arena.cluster, folder=own_cluster.folder)
    arena.open()
    own = replace(own_cluster, arena=arena)
    yield lambda calm: lambda _count: contextlib.nullcontext(replace(own, calm=calm))
    asyncio.run(own.clear())


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Result:
    """Return a function that runs a benchmark with sizes from the environment, and returns its last line."""

    def run(main: Callable[[], None], **sizes: int | str) -> dict[str, object]:
        for name, value in sizes.items():
            monkeypatch.setenv(name, str(value))
        main()
        figures: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return figures

    return run


@pytest.mark.parametrize(
    ("main", "sizes", "calm", "fields"),
    [
        pytest.param(
            wake.main, {"WAITING": 8, "SAMPLES": 2, "EVENTS": 0}, NONE, {"p50_ms", "p99_ms", "waiting"}, id="wake"
        ),
        # It starts with a Lease that another operator has released.
        pytest.param(restart.main, {"PODS": 16, "REPEAT": 1}, CALM, {"seconds", "slowest", "pods"}, id="restart"),
        pytest.param(
            kubectl_berth.main,
            {"PODS": 16, "WAITING": 2, "REPEAT": 1, "COMMANDS": "free", "VISIBILITY": 0},
            CALM,
            {"free", "pods"},
            id="kubectl",
        ),
        pytest.param(memory.main, {"PODS": 16}, CALM, {"rss_mb", "peak_mb", "pods"}, id="memory"),
    ],
)
def test_a_benchmark_of_the_operator_ends_with_its_figures(
    *,
    main: Callable[[Opener], None],
    sizes: Sizes,
    calm: float,
    fields: set[str],
    open_track: Callable[[float], Opener],
    result: Result,
) -> None:
    figures = result(lambda: main(open_track(calm)), NODES=NODES, **sizes)

    assert fields <= figures.keys()
    assert figures["nodes"] == NODES
    assert all(isinstance(figures[name], int | float) and float(str(figures[name])) > 0 for name in fields)


def test_the_benchmark_of_waking_ends_with_the_figures_of_both(
    open_track: Callable[[float], Opener], result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINDS", " ".join(KINDS))
    printed = result(lambda: wake.main(open_track(NONE)), NODES=NODES, WAITING=2, SAMPLES=0, CLASSES=2, EVENTS=1)

    events = printed["events"]
    assert isinstance(events, dict)
    assert tuple(events) == KINDS
    for kind, both in events.items():
        assert both.keys() == {"ours", "kube_scheduler"}
        assert all(0 <= value < 60_000 for figures in both.values() for value in figures.values()), (kind, both)


def test_the_race_ends_with_the_figures_of_all(open_track: Callable[[float], Opener], result: Result) -> None:
    printed = result(lambda: throughput.main(open_track(NONE)), NODES=NODES, PODS=4, REPEAT=1)

    assert printed["ratio"]
    for scheduler in ("ours", "kube_scheduler"):
        figures = printed[scheduler]
        assert isinstance(figures, dict)
        assert figures.keys() == FIGURES
        assert figures["pods_per_s"] > 0
        assert all(math.isfinite(value) and value >= 0 for value in figures.values())


def test_the_benchmark_of_watches_ends_with_the_figures_without_and_with_them(
    open_track: Callable[[float], Opener], result: Result
) -> None:
    printed = result(lambda: watched.main(open_track(NONE)), NODES=NODES, PODS=4, REPEAT=1, WATCHERS=3)

    for name in ("cpu_ms_per_pod", "pods_per_s", "held_ms"):
        figures = printed[name]
        assert isinstance(figures, list)
        assert all(math.isfinite(value) and value >= 0 for value in figures)
    assert float(str(printed["received_mib"])) > 0


def test_the_race_with_the_extender_ends_with_the_figures_of_all(
    open_track: Callable[[float], Opener], result: Result
) -> None:
    printed = result(lambda: extender.main(open_track(NONE)), NODES=NODES, LARGE=0, PODS=4, CALLS=4)

    rates = {"pods_per_s", "kube_scheduler_pods_per_s", "ours_pods_per_s"}
    quantiles = {f"{verb}_p{share}_ms" for verb in ("filter", "prioritize", "bind") for share in (50, 99)}
    assert printed.keys() == {"bench", "nodes", "large", *rates, *quantiles}
    assert all(float(str(printed[name])) > 0 for name in rates | quantiles)


def test_the_benchmark_of_elections_ends_with_the_rows_of_both(
    open_track: Callable[[float], Opener], result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYS", "0.2")

    printed = result(lambda: election.main(open_track(NONE)), SECONDS=1, OVERLOAD=0)

    for scheduler in ("ours", "kube_scheduler"):
        figures = printed[scheduler]
        assert isinstance(figures, dict)
        assert figures["delays"]["0.2"]["leads_after_s"] > 0


def test_the_benchmark_of_churn_ends_with_the_figures_of_both(
    open_track: Callable[[float], Opener], result: Result
) -> None:
    printed = result(lambda: churn.main(open_track(NONE)), WAITING=20, SECONDS=1, JOINING=1)

    for scheduler in ("ours", "kube_scheduler"):
        figures = printed[scheduler]
        assert isinstance(figures, dict)
        assert figures.keys() == {"events", "status_writes", "first_report_p99_s", "stale_s", "rss_mb"}
        assert figures["events"] >= 6
        assert figures["first_report_p99_s"] > 0


def test_claims_that_take_long_hold_up_no_other_pods(open_track: Callable[[float], Opener], result: Result) -> None:
    sizes = {"DEVICES": 128, "WAITING": 20, "SLOW": 6, "SECONDS": 3}
    printed = result(lambda: claims_hold.main(open_track(NONE)), NODES=NODES, **sizes)

    assert printed["terms_lost"] == 0
    # On a machine ten times slower.
    assert float(str(printed["p99_s"])) <= 10 * claims_hold.LIMITS["p99_s"]
    assert float(str(printed["cheap_s"])) <= 10 * claims_hold.LIMITS["cheap_s"]


def test_the_benchmark_of_the_core_ends_with_its_figures(
    result: Result,
) -> None:
    figures = result(core.main, NODES=20, CLASSES=20, DECISIONS=40)

    assert {"decisions_per_s", "p50_ms", "p99_ms", "cold_p99_ms"} <= figures.keys()
    assert figures["decisions"] == 40
