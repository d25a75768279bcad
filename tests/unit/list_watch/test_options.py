"""The options of lists and watches, and what is refused."""

from typing import Any

import pytest

from berth_operator.apis.aggregated import options
from berth_operator.apis.aggregated.kinds import Entry
from berth_operator.apis.aggregated.statuses import StatusError
from berth_operator.apis.list_watch.kinds import NODES, PODS, SourcedKind


def entry(name: str = "p", namespace: str = "ns", node: str = "n1", **labels: str) -> Entry:
    fields = {"metadata.name": name, "metadata.namespace": namespace, "spec.node_name": node}
    return Entry(key=(namespace, name), version=1, labels=labels, fields=fields, metadata={}, cells=[], body=b"{}")


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "b"}, True),
        ("a = b , c!=d", {"a": "b"}, True),
        ("a=b,c!=d", {"a": "b", "c": "d"}, False),
        ("a=", {"a": ""}, True),
        ("a", {"a": "x"}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("!a", {"a": "x"}, False),
        ("a in (b, c)", {"a": "c"}, True),
        ("a in (b,c),d", {"a": "c"}, False),
        ("a notin (b)", {"a": "b"}, False),
        ("a notin (b)", {}, True),
        ("nvidia-gpu-scheduler.node=n-1.x", {"nvidia-gpu-scheduler.node": "n-1.x"}, True),
        ("x.io/y in (z)", {"x.io/y": "z"}, True),
        ("in in (in)", {"in": "in"}, True),
        ("gpus>4", {"gpus": "8"}, True),
        ("gpus < 4", {"gpus": "8"}, False),
    ],
)
def test_label_selectors(selector: str, labels: dict[str, str], *, selected: bool) -> None:
    assert options.read(PODS, "", {"labelSelector": selector}).selection.matches(entry(**labels)) is selected


@pytest.mark.parametrize(
    ("selector", "selected", "name"),
    [
        ("metadata.name=p", True, "p"),
        ("metadata.name==p,metadata.namespace=ns", True, "p"),
        ("metadata.name=q", False, "q"),
        ("metadata.name!=p", False, ""),
        ("metadata.name!=q", True, ""),
        ("spec.node_name=n1", True, ""),
        ("spec.node_name=n2", False, ""),
    ],
)
def test_field_selectors(selector: str, name: str, *, selected: bool) -> None:
    selection = options.read(PODS, "", {"fieldSelector": selector}).selection
    assert (selection.matches(entry()), selection.name) == (selected, name)


def test_only_objects_of_the_namespace_are_selected() -> None:
    selection = options.read(PODS, "ns", {}).selection
    assert [selection.matches(entry(namespace=each)) for each in ("ns", "other")] == [True, False]


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ({}, {"watch": False, "version": 0, "bookmarks": False, "seconds": 0.0}),
        ({"watch": "true"}, {"watch": True, "begins_with_state": True}),
        ({"watch": "1", "resourceVersion": "0"}, {"watch": True, "begins_with_state": True}),
        ({"watch": ""}, {"watch": True}),
        ({"watch": "true", "resourceVersion": "12"}, {"version": 12, "begins_with_state": False}),
        ({"watch": "true", "timeoutSeconds": "5"}, {"seconds": 5.0}),
        ({"watch": "true", "timeoutSeconds": "99999999"}, {"seconds": 3600.0}),
        ({"watch": "true", "allowWatchBookmarks": "true"}, {"bookmarks": True}),
        ({"watch": "t", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "resourceVersion": "5"},
         {"begins_with_state": True, "version": 5}),
        ({"watch": "t", "sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"},
         {"begins_with_state": False, "version": 0}),
        ({"limit": "500", "unknown": "x"}, {"watch": False, "limit": 500}),
        ({"resourceVersion": "7", "resourceVersionMatch": "Exact"}, {"match": "Exact", "version": 7}),
    ],
)  # fmt: skip
def test_options_are_read_as_the_api_server_reads_them(query: dict[str, str], fields: dict[str, Any]) -> None:
    read = options.read(PODS, "", query)
    assert {field: getattr(read, field) for field in fields} == fields


@pytest.mark.parametrize(
    ("kind", "query", "code", "message"),
    [
        (PODS, {"labelSelector": "a=b=c"}, 400, 'labelSelector: cannot read "a=b=c"'),
        (PODS, {"labelSelector": "a in b"}, 400, 'labelSelector: cannot read "a in b"'),
        (PODS, {"labelSelector": ",a"}, 400, "labelSelector: cannot read"),
        (PODS, {"labelSelector": "a,"}, 400, "labelSelector: cannot read"),
        (PODS, {"labelSelector": "a/b/c"}, 400, 'labelSelector: "a/b/c" is not the key of a label'),
        (PODS, {"labelSelector": "a in (b, -c)"}, 400, 'labelSelector: "-c" is not the value of a label'),
        (PODS, {"labelSelector": "a>b"}, 400, 'labelSelector: "b": after > and < there must be an integer'),
        (PODS, {"labelSelector": "a," * 4000}, 400, "labelSelector: more than 4096 characters"),
        (PODS, {"labelSelector": "!a," * 64 + "!a"}, 400, "labelSelector: more than 64 requirements and values"),
        (PODS, {"labelSelector": f"a notin ({',' * 60}),b in (c,d,e,f)"}, 400, "more than 64 requirements and values"),
        (PODS, {"fieldSelector": "metadata.name!=a," * 65}, 400, "fieldSelector: more than 64 requirements"),
        (PODS, {"fieldSelector": "metadata.name"}, 400, "fieldSelector: cannot read"),
        (PODS, {"fieldSelector": "x" * 5000}, 400, "fieldSelector: more than 4096 characters"),
        (PODS, {"fieldSelector": "spec.pod_name=p"}, 400, '"spec.pod_name" is not a known field selector'),
        (NODES, {"fieldSelector": "spec.node_name=p"}, 400, '"spec.node_name" is not a known field selector'),
        (PODS, {"resourceVersion": "abc"}, 400, 'resourceVersion: "abc" is not a number'),
        (PODS, {"resourceVersion": "-1"}, 400, "is not a number"),
        (PODS, {"resourceVersion": "9" * 30}, 400, "is not a number"),
        (PODS, {"resourceVersion": "\u0661"}, 400, "is not a number"),
        (PODS, {"watch": "maybe"}, 400, 'watch: "maybe" is neither true nor false'),
        (PODS, {"timeoutSeconds": "1.5"}, 400, "timeoutSeconds"),
        (PODS, {"resourceVersionMatch": "Newest", "resourceVersion": "1"}, 422, "allowed are Exact, NotOlderThan"),
        (PODS, {"resourceVersionMatch": "Exact"}, 422, "forbidden unless resourceVersion is set"),
        (PODS, {"resourceVersionMatch": "Exact", "resourceVersion": "0"}, 422, "Exact is forbidden"),
        (PODS, {"sendInitialEvents": "true"}, 422, "sendInitialEvents: forbidden for list"),
        (PODS, {"watch": "1", "resourceVersionMatch": "NotOlderThan"}, 422, "forbidden for watch unless"),
        (PODS, {"watch": "1", "sendInitialEvents": "true"}, 422, "resourceVersionMatch must be NotOlderThan"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(kind: SourcedKind, query: dict[str, str], code: int, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        options.read(kind, "", query)
    assert caught.value.code == code
    assert message in str(caught.value)
