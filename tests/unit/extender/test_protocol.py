"""The JSON of extenders: whatever a client sends is read, or refused with a message."""

import contextlib
import copy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api.request import BUILT_IN
from berth_operator.apis.extender import protocol
from berth_operator.apis.extender.protocol import FilterResult, ProtocolError, Victims
from tests.objects.builders import NVIDIA, pod

json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["Pod", "pod", "NodeNames", "Nodes", "NodeNameToVictims", "nodenametometavictims", "PodName"])
READERS = {"node": protocol.node_args, "preempt": protocol.preempt_args, "bind": protocol.bind_args}

RICH = pod(
    "p",
    {NVIDIA: "1", "cpu": "1"},
    schedulerName="default-scheduler",
    priority=5,
    labels={"genius/priority": "1", "app": "x"},
    annotations={"nvidia-gpu-scheduler/gpu.model": "A100", "berth.dev/gpu-topology": "nvlink"},
    tolerations=[{"key": "a", "operator": "Exists"}],
    nodeSelector={"a": "b"},
    affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}},
    topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}],
    volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    initContainers=[{"name": "i", "resources": {"limits": {"cpu": "1"}}}],
    status={"nominatedNodeName": "n"},
    metadata={"ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}]},
)


@given(st.sampled_from(sorted(READERS)), json | st.dictionaries(keys, json, max_size=4))
def test_any_json_is_read_or_refused(reader: str, body: Any) -> None:
    if fits(body):
        with contextlib.suppress(ProtocolError):
            READERS[reader](orjson.dumps(body))


def fits(body: Any) -> bool:
    try:
        orjson.dumps(body)
    except orjson.JSONEncodeError:
        return False
    return True


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in items for found in places(inner, (*path, key)))]


PLACES = places(RICH)[1:]


@settings(max_examples=400)
@given(st.sampled_from(PLACES), json)
def test_any_pod_is_read_or_refused(path: tuple[Any, ...], value: Any) -> None:
    raw = copy.deepcopy(RICH)
    holder: Any = raw
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    if not fits(raw):
        return
    with contextlib.suppress(ProtocolError):
        args = protocol.node_args(orjson.dumps({"Pod": raw, "NodeNames": []}))
        read = protocol.read_pod(args.pod, BUILT_IN, "default-scheduler")
        # Values that decisions compare.
        assert isinstance(read.priority, int)
        assert all(isinstance(each, str) for each in (read.uid, read.scheduler, read.nominated_node))


def test_reading_leaves_the_request_as_it_was() -> None:
    raw = copy.deepcopy(RICH)
    protocol.read_pod(raw, BUILT_IN, "default-scheduler")
    assert raw == RICH


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (None, {"Nodes": None, "NodeNames": ["a"]}),
        ({"a": {"metadata": {"name": "a"}}}, {"Nodes": {"items": [{"metadata": {"name": "a"}}]}, "NodeNames": None}),
    ],
)
def test_the_answer_has_exactly_the_fields_of_go(nodes: Any, expected: Any) -> None:
    args = protocol.NodeArgs(pod={}, names=["a", "b"], nodes=nodes)
    answer = orjson.loads(protocol.filter_answer(args, FilterResult(names=["a"], failed={"b": "no"})))
    assert answer == {**expected, "FailedNodes": {"b": "no"}, "FailedAndUnresolvableNodes": {}, "Error": ""}


def test_other_answers_have_exactly_the_fields_of_go() -> None:
    assert protocol.prioritize_answer(["a"], [3]) == b'[{"Host":"a","Score":3}]'
    assert protocol.bind_answer("no") == b'{"Error":"no"}'
    victims = {"a": Victims(uids=["u"], violations=2)}
    assert protocol.preempt_answer(victims) == (
        b'{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"u"}],"NumPDBViolations":2}}}'
    )
