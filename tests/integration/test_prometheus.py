"""The Prometheus of tests: it scrapes, answers, and comes back after a kill."""

import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from tests.prometheus import Prometheus, QueryError


@pytest.fixture
def target() -> Iterator[tuple[Gauge, str]]:
    registry = CollectorRegistry()
    gauge = Gauge("berth_example", "An example", ["place"], registry=registry)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield gauge, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_what_a_target_exposes_can_be_queried_before_and_after_a_kill(
    prometheus: Prometheus, target: tuple[Gauge, str]
) -> None:
    gauge, address = target
    gauge.labels("here").set(3)
    prometheus.scrape("example", address, labels={"node": "a"})

    [sample] = prometheus.until("berth_example == 3")
    assert sample.labels == {
        "__name__": "berth_example",
        "place": "here",
        "job": "example",
        "instance": address,
        "node": "a",
    }

    prometheus.kill()
    with pytest.raises(urllib.error.URLError, match="refused"):
        prometheus.query("up")

    prometheus.start()
    gauge.labels("here").set(4)
    assert prometheus.until("berth_example == 4")
    assert prometheus.value("max_over_time(berth_example[10m]) > min_over_time(berth_example[10m])") == 4


def test_an_invalid_expression_is_refused(prometheus: Prometheus) -> None:
    with pytest.raises(QueryError, match="parse error"):
        prometheus.query("sum(")


@pytest.mark.usefixtures("promtool")
def test_https(tmp_path: Path) -> None:
    with Prometheus(folder=tmp_path / "prometheus", https=True) as prometheus:
        assert prometheus.url.startswith("https://127.0.0.1:")
        assert prometheus.value("scalar(vector(2))") == 2
