"""The result of `make upstream-perf`."""

from tests.bench.upstream import row, summary
from tests.upstream.perf import BARE, BERTH, KUBE_SCHEDULER, Figures, Workload

BASIC = Workload(package="misc", case="SchedulingBasic", name="500Nodes")


def runs(*seconds: float, cpu: float = 1.0) -> list[Figures]:
    return [Figures(pods=100, seconds=each, cpu_seconds=cpu) for each in seconds]


def test_a_row_compares_medians() -> None:
    measured = {
        KUBE_SCHEDULER: runs(10.0, 40.0, 20.0),
        BERTH: runs(5.0, 10.0, 7.0, cpu=0.25),
        BARE: runs(4.0, 3.5, 5.6),
    }
    assert row(BASIC, measured) == {
        "workload": "SchedulingBasic/500Nodes",
        "pods_per_s": 14.3,
        "kube_scheduler_pods_per_s": 5.0,
        "ratio": 2.86,
        "of_ceiling": 0.57,
        "cpu_ms": 2.5,
        "cpu_ratio": 0.25,
    }


def test_a_scheduler_that_failed_has_no_figures_and_is_named() -> None:
    failed = row(BASIC, {KUBE_SCHEDULER: runs(10.0), BERTH: []})
    assert (failed["pods_per_s"], failed["ratio"], failed["kube_scheduler_pods_per_s"]) == (None, None, 10.0)
    faster = row(BASIC, {KUBE_SCHEDULER: runs(10.0), BERTH: runs(4.0)})
    slower = row(BASIC, {KUBE_SCHEDULER: runs(10.0), BERTH: runs(20.0)})
    assert summary([failed, faster, slower]) == {
        "median_ratio": 1.5,
        "worst_ratio": 0.5,
        "cpu_ratio": 1.0,
        "of_ceiling": None,
        "failed": ["SchedulingBasic/500Nodes"],
    }
