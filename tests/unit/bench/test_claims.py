"""The result of `make bench-claims`."""

from tests.bench.claims import WORKLOADS, row
from tests.upstream.perf import Figures


def runs(*seconds: float, cpu: float = 1.0) -> list[Figures]:
    return [Figures(pods=100, seconds=each, cpu_seconds=cpu) for each in seconds]


def test_a_row_compares_medians() -> None:
    assert row(WORKLOADS[0], runs(10.0, 40.0, 20.0), runs(5.0, 10.0, 7.0, cpu=0.25), runs(4.0, 3.5, 5.6)) == {
        "workload": "SchedulingWithResourceClaimTemplate/2000pods_200nodes",
        "pods_per_s": 14.3,
        "kube_scheduler_pods_per_s": 5.0,
        "ratio": 2.86,
        "of_ceiling": 0.57,
        "cpu_ms": 2.5,
        "cpu_ratio": 0.25,
    }
