"""Only valid data of exporters, agents and Prometheus is read, as values in base units."""

import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_operator.core.values.gpu_metrics import CardSample, Quantity
from berth_operator.metrics.gpu import answers, exposition, families, services
from berth_operator.metrics.gpu.answers import AnswerError
from berth_operator.metrics.gpu.families import AGENT, DCGM, FAMILIES, OBSERVER_WARD, Collector, MetricFamily

MIB = 2**20
Labels = dict[str, str]


def known(sample: CardSample) -> dict[str, float]:
    """Return the known values of a sample by quantity."""
    return {q.name: value for q, value in zip(Quantity, sample.values, strict=True) if not math.isnan(value)}


# --- families ---------------------------------------------------------------------------------------------------

CARD: dict[str, Labels] = {
    AGENT.name: {"UUID": "GPU-1", "node": "a"},
    DCGM.name: {"UUID": "GPU-1", "Hostname": "a"},
    OBSERVER_WARD.name: {"uuid": "GPU-1", "kubernetes_node": "a"},
}


@pytest.mark.parametrize(
    ("family", "raw", "expected"),
    [
        pytest.param(
            AGENT,
            {
                "berth_gpu_memory_free_bytes": 7e9,
                "berth_gpu_memory_used_bytes": 1e9,
                "berth_gpu_sm_utilization_ratio": 0.5,
                "berth_gpu_encoder_utilization_ratio": 0.25,
                "berth_gpu_decoder_utilization_ratio": 0.125,
                "berth_gpu_power_watts": 300.0,
                "berth_gpu_power_limit_watts": 400.0,
            },
            {"FREE_MEMORY": 7e9, "USED_MEMORY": 1e9, "POWER_LIMIT": 400.0},
            id="our agents",
        ),
        pytest.param(
            DCGM,
            {
                "DCGM_FI_DEV_FB_FREE": 7000.0,
                "DCGM_FI_DEV_FB_USED": 1000.0,
                "DCGM_FI_DEV_GPU_UTIL": 50.0,
                "DCGM_FI_DEV_ENC_UTIL": 25.0,
                "DCGM_FI_DEV_DEC_UTIL": 12.5,
                "DCGM_FI_DEV_POWER_USAGE": 300.0,
                "DCGM_FI_DEV_POWER_MGMT_LIMIT": 400.0,
            },
            {"FREE_MEMORY": 7000.0 * MIB, "USED_MEMORY": 1000.0 * MIB, "POWER_LIMIT": 400.0},
            id="DCGM exporter",
        ),
        pytest.param(
            OBSERVER_WARD,
            {
                "observerward_dynamic_gpu_free_global_memory_MiB": 7000.0,
                "observerward_dynamic_gpu_used_global_memory_MiB": 1000.0,
                "observerward_dynamic_gpu_encoder_utilization": 25.0,
                "observerward_dynamic_gpu_decoder_utilization": 12.5,
                "observerward_dynamic_gpu_power_usage_W": 300.0,
            },
            {"FREE_MEMORY": 7000.0 * MIB, "USED_MEMORY": 1000.0 * MIB},
            id="ObserverWard",
        ),
    ],
)
def test_each_family_is_read_in_base_units(
    family: MetricFamily, raw: dict[str, float], expected: dict[str, float]
) -> None:
    by_name, labels = family.by_name(), CARD[family.name]
    assert raw.keys() == by_name.keys()
    collector = Collector(family, max_age=60.0)
    collector.add_age(labels, 5.0)
    for name, value in raw.items():
        collector.add(by_name[name], labels, value)
    [sample] = collector.samples()
    assert (sample.uuid, sample.node, sample.age) == ("GPU-1", "a", 5.0)
    common = {"ENCODER": 0.25, "DECODER": 0.125, "POWER": 300.0}
    busy = {} if family is OBSERVER_WARD else {"MULTIPROCESSORS": 0.5}
    assert known(sample) == {**common, **busy, **expected}


@pytest.mark.parametrize(("age", "count"), [(60.0, 1), (60.1, 0), (-3.0, 1)])
def test_a_card_that_was_measured_too_long_ago_is_left_out(age: float, count: int) -> None:
    labels = CARD[AGENT.name]
    collector = Collector(AGENT, max_age=60.0)
    collector.add_age(labels, age)
    collector.add(AGENT.series[0], labels, 1.0)
    assert [each.age for each in collector.samples()] == [max(age, 0.0)] * count
    assert collector.knows_cards == bool(count)


def test_each_query_is_for_all_cards() -> None:
    assert families.ages(DCGM) == ('time() - max by (UUID, Hostname) (timestamp(DCGM_FI_DEV_FB_USED{GPU_I_ID=""}))')
    assert [families.values(DCGM, each, 60.0) for each in DCGM.series[:2]] == [
        'max by (UUID, Hostname) (last_over_time(DCGM_FI_DEV_FB_USED{GPU_I_ID=""}[60s]))',
        'min by (UUID, Hostname) (last_over_time(DCGM_FI_DEV_FB_FREE{GPU_I_ID=""}[60s]))',
    ]
    assert all(len(family.series) <= len(Quantity) for family in FAMILIES)


# --- answers ----------------------------------------------------------------------------------------------------


def answer(*series: tuple[Labels, Any], **fields: Any) -> bytes:
    result = [{"metric": labels, "value": [1732240000.123, value]} for labels, value in series]
    return orjson.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **fields})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(answer(), [], id="nothing"),
        pytest.param(answer(({"UUID": "a"}, "1.5")), [({"UUID": "a"}, 1.5)], id="one"),
        pytest.param(answer(({}, "1"), ({"b": "c"}, "2e3")), [({}, 1.0), ({"b": "c"}, 2000.0)], id="two"),
        pytest.param(answer(({}, "NaN"), ({}, "+Inf"), ({}, "-Inf")), [], id="no numbers"),
        pytest.param(
            answer(({"a": '{"metric":"value":[]}'}, "1")), [({"a": '{"metric":"value":[]}'}, 1.0)], id="marks"
        ),
        pytest.param(answer(({}, "1"), warnings=["old"]), [({}, 1.0)], id="with a warning"),
    ],
)
def test_an_instant_vector_is_read(body: bytes, expected: list[tuple[Labels, float]]) -> None:
    assert list(answers.vector(body)) == expected


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>", id="a page"),
        pytest.param(b'{"status":"error","error":"x"}', id="an error"),
        pytest.param(b'{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}', id="a scalar"),
        pytest.param(answer(({}, None)), id="null for a value"),
        pytest.param(answer(({}, "lots")), id="no number"),
        pytest.param(answer(({}, "1"))[:-20], id="cut off"),
        pytest.param(answer(({}, "1")).replace(b'"metric":{}', b'"metric":[]'), id="labels as a list"),
        pytest.param(answer(*[({}, "1")] * (answers.MAX_SERIES + 1)), id="too many"),
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(AnswerError):
        list(answers.vector(body))


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.text(), max_size=3), st.floats()), max_size=5))
def test_any_labels_are_read(series: list[tuple[Labels, float]]) -> None:
    body = answer(*[(labels, repr(value)) for labels, value in series])
    assert list(answers.vector(body)) == [each for each in series if math.isfinite(each[1])]


@given(st.binary())
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        list(answers.vector(b'{"status":"success","data":{"resultType":"vector","result":[{"metric":' + body))
    except AnswerError:
        return


# --- what agents expose -----------------------------------------------------------------------------------------

EXPOSED = """\
# HELP berth_gpu_memory_free_bytes Free memory
# TYPE berth_gpu_memory_free_bytes gauge
berth_gpu_memory_free_bytes{node="a",UUID="GPU-1",minor="0",model="NVIDIA \\"A\\" {x},\\\\"} 8.5e+10
berth_gpu_memory_free_bytes{node="b",UUID="GPU-2",minor="0",model="m"} 1
berth_gpu_memory_free_bytes{UUID="GPU-3"} 2 1732240000000
berth_gpu_sm_utilization_ratio{node="a",UUID="GPU-1",minor="0",model="m"} 0.75
berth_gpu_power_watts{node="a",UUID="GPU-1",minor="0",model="m"} NaN
berth_gpu_power_watts{node="a",minor="0",model="m"} 3
berth_gpu_power_watts{node="a",UUID="GPU-1" 3
berth_gpu_power_watts{node="a",UUID="GPU-1"} many
berth_gpu_temperature_celsius{node="a",UUID="GPU-1",minor="0",model="m"} 99
berth_gpu_reading_timestamp_seconds{node="a"} 1000
process_cpu_seconds_total 5
"""


def test_an_agent_speaks_for_the_cards_of_its_own_node() -> None:
    first, second = exposition.samples(EXPOSED, "a", now=1004.0)
    assert (first.uuid, first.node, first.age, known(first)) == (
        *("GPU-1", "a", 4.0),
        {"FREE_MEMORY": 8.5e10, "MULTIPROCESSORS": 0.75},
    )
    assert (second.uuid, second.node, known(second)) == ("GPU-3", "a", {"FREE_MEMORY": 2.0})


@pytest.mark.parametrize(("now", "age"), [(1004.0, 4.0), (900.0, 0.0), (1e9, exposition.MAX_AGE)])
def test_a_clock_that_is_wrong_does_not_make_an_agent_useless(now: float, age: float) -> None:
    assert {each.age for each in exposition.samples(EXPOSED, "a", now)} == {age}


def test_an_agent_that_exposes_too_many_cards_is_read_in_part() -> None:
    text = "".join(f'berth_gpu_power_watts{{node="a",UUID="GPU-{number}"}} 1\n' for number in range(300))
    assert len(exposition.samples(text, "a", 0.0)) == exposition.MAX_CARDS


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert exposition.samples(text, "a", 0.0) == []
    exposition.samples(f"berth_gpu_power_watts{{{text}}} 1", "a", 0.0)


# --- Services that claim to be Prometheus -----------------------------------------------------------------------


def service(name: str, *ports: dict[str, Any], labels: Labels | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "monitoring", "labels": labels or {}}
    return {"metadata": metadata, "spec": {"clusterIP": "10.0.0.1", "ports": list(ports), **spec}}


WEB = {"name": "web", "port": 9090}
LABELLED = {"app.kubernetes.io/name": "prometheus"}


@pytest.mark.parametrize(
    ("found", "url"),
    [
        pytest.param([], "", id="none"),
        pytest.param([service("prometheus", WEB)], "http://prometheus.monitoring.svc:9090", id="by name"),
        pytest.param([service("x", WEB, labels=LABELLED)], "http://x.monitoring.svc:9090", id="by label"),
        pytest.param([service("grafana", WEB)], "", id="another program"),
        pytest.param(
            [service("x", WEB, labels={**LABELLED, "app.kubernetes.io/component": "alertmanager"})], "", id="a part"
        ),
        pytest.param([service("prometheus", WEB, type="ExternalName", clusterIP="")], "", id="an external name"),
        pytest.param(
            [
                service("z", WEB, labels=LABELLED),
                service("prometheus-operated", WEB),
                service("prometheus-server", WEB),
            ],
            "http://prometheus-server.monitoring.svc:9090",
            id="the best of several",
        ),
        pytest.param(
            [service("prometheus", {"name": "grpc", "port": 10901}, {"name": "https-web", "port": 443})],
            "https://prometheus.monitoring.svc:443",
            id="https",
        ),
        pytest.param(
            [service("prometheus", {"name": "grpc", "port": 1}, {"name": "x", "port": 2})], "", id="no usual port"
        ),
        pytest.param([service("prometheus", {"port": 80})], "http://prometheus.monitoring.svc:80", id="the only port"),
    ],
)
def test_prometheus_is_found_by_its_service(found: list[dict[str, Any]], url: str) -> None:
    assert services.best(found) == url
