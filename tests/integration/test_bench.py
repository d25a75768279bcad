"""Each benchmark runs to its end, tiny, on one cluster: so none of them rots. Their figures mean nothing here."""

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from devcluster import Arena
from tests.bench import core, memory, restart, throughput, track, wake
from tests.bench.track import Opener, Track

Sizes = dict[str, int]
Result = Callable[..., dict[str, object]]

NODES = 2
CALM = 0.3
FIGURES = {"pods_per_s", "cpu_ms_per_pod", "rss_mb", "requests_per_pod"}


# The session's cluster is not used, but whoever asks for it gets the programs built outside of any test's timeout.
@pytest.fixture(scope="module")
def opened(cluster: object) -> Iterator[Track]:  # noqa: ARG001 - see above
    with track.opened(NODES) as made:
        yield replace(made, calm=CALM)


@pytest.fixture
def opener(opened: Track) -> Iterator[Opener]:
    """Opens the module's track, whatever the size that is asked for, with a namespace of the test's own."""
    arena = Arena(cluster=opened.arena.cluster, folder=opened.folder)
    arena.open()
    own = replace(opened, arena=arena)
    yield lambda _count: contextlib.nullcontext(own)
    asyncio.run(own.clear())


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Result:
    """Runs a benchmark with sizes from the environment, as `make` does, and gives what its last line holds."""

    def run(main: Callable[[], None], **sizes: int) -> dict[str, object]:
        for name, value in sizes.items():
            monkeypatch.setenv(name, str(value))
        main()
        found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    return run


@pytest.mark.parametrize(
    ("main", "sizes", "fields"),
    [
        pytest.param(wake.main, {"WAITING": 8, "SAMPLES": 2}, {"p50_ms", "p99_ms", "waiting"}, id="wake"),
        pytest.param(restart.main, {"PODS": 16, "REPEAT": 1}, {"seconds", "slowest", "pods"}, id="restart"),
        pytest.param(memory.main, {"PODS": 16}, {"rss_mb", "peak_mb", "pods"}, id="memory"),
    ],
)
def test_a_benchmark_of_the_operator_ends_with_its_figures(
    main: Callable[[Opener], None], sizes: Sizes, fields: set[str], opener: Opener, result: Result
) -> None:
    found = result(lambda: main(opener), NODES=NODES, **sizes)

    assert fields <= found.keys()
    assert found["nodes"] == NODES
    assert all(isinstance(found[name], int | float) and float(str(found[name])) > 0 for name in fields)


def test_the_race_ends_with_the_figures_of_both(opener: Opener, result: Result) -> None:
    found = result(lambda: throughput.main(opener), NODES=NODES, PODS=4, REPEAT=1)

    assert found["ratio"]
    for who in ("ours", "kube_scheduler"):
        figures = found[who]
        assert isinstance(figures, dict)
        assert figures.keys() == FIGURES
        assert figures["pods_per_s"] > 0
        assert all(math.isfinite(value) and value >= 0 for value in figures.values())


def test_the_benchmark_of_the_core_ends_with_its_figures(
    result: Result,
) -> None:
    found = result(core.main, NODES=20, CLASSES=20, DECISIONS=40)

    assert {"decisions_per_s", "p50_ms", "p99_ms", "cold_p99_ms"} <= found.keys()
    assert found["decisions"] == 40
