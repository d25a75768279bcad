"""The benchmarks that compare changes end with their figures, with small sizes on one cluster."""

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from devcluster import Arena
from tests.bench.cluster import track
from tests.bench.cluster.track import Opener, Track
from tests.bench.decisions import core
from tests.bench.speed import claims_hold, throughput

Result = Callable[..., dict[str, object]]

NODES = 2
FIGURES = {"pods_per_s", "cpu_ms_per_pod", "rss_mb", "requests_per_pod"}


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Track]:
    """Open a track of the module's own."""
    with track.opened(NODES) as opened:
        yield opened


@pytest.fixture
def open_track(own_cluster: Track) -> Iterator[Opener]:
    """Return an opener of the module's track, with a namespace of the test's own and no calm before the measurement."""
    arena = Arena(cluster=own_cluster.arena.cluster, folder=own_cluster.folder)
    arena.open()
    own = replace(own_cluster, arena=arena, calm=0.0)
    yield lambda _count: contextlib.nullcontext(own)
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


def test_the_race_ends_with_the_figures_of_all(open_track: Opener, result: Result) -> None:
    printed = result(lambda: throughput.main(open_track), NODES=NODES, PODS=4, REPEAT=1)

    assert printed["ratio"]
    for scheduler in ("ours", "kube_scheduler"):
        figures = printed[scheduler]
        assert isinstance(figures, dict)
        assert figures.keys() == FIGURES
        assert figures["pods_per_s"] > 0
        assert all(math.isfinite(value) and value >= 0 for value in figures.values())


def test_claims_that_take_long_hold_up_no_other_pods(open_track: Opener, result: Result) -> None:
    sizes = {"DEVICES": 128, "WAITING": 20, "SLOW": 6, "SECONDS": 3}
    printed = result(lambda: claims_hold.main(open_track), NODES=NODES, **sizes)

    assert printed["terms_lost"] == 0
    # On a machine ten times slower.
    assert float(str(printed["p99_s"])) <= 10 * claims_hold.LIMITS["p99_s"]
    assert float(str(printed["cheap_s"])) <= 10 * claims_hold.LIMITS["cheap_s"]


def test_the_benchmark_of_the_core_ends_with_its_figures(result: Result) -> None:
    figures = result(core.main, NODES=20, CLASSES=20, DECISIONS=40)

    assert {"decisions_per_s", "p50_ms", "p99_ms", "cold_p99_ms"} <= figures.keys()
    assert figures["decisions"] == 40
