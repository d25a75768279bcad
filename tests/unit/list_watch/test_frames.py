"""Answers as bytes: the format that a client gets, lists, tables and frames."""

import orjson
import pytest

from berth_operator.apis.aggregated import frames
from berth_operator.apis.aggregated.chunks import Chunk
from berth_operator.apis.aggregated.frames import Form
from berth_operator.apis.aggregated.kinds import Entry
from berth_operator.apis.aggregated.statuses import StatusError, expired
from berth_operator.apis.list_watch.kinds import NODES, PODS

KUBECTL = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)


def pod(name: str, version: int) -> Entry:
    metadata = {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": str(version), "creationTimestamp": "T"}
    return PODS.entry({"metadata": metadata, "spec": {"nodeName": "n1", "allocated": [GPU]}})


GPU = {"type": "gpu", "minor": 0, "id": "GPU-0"}


@pytest.mark.parametrize(
    ("accept", "table"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/json; charset=utf-8", False),
        ("application/vnd.kubernetes.protobuf,application/json", False),
        ("application/vnd.kubernetes.protobuf;q=1, */*;q=0.5", False),
        (KUBECTL, True),
        ("application/json, " + KUBECTL, False),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json", False),
    ],
)
def test_a_client_gets_the_first_form_that_is_offered(accept: str, *, table: bool) -> None:
    assert frames.form(PODS, accept, "").table is table


@pytest.mark.parametrize(
    "accept", ["text/html", "application/vnd.kubernetes.protobuf", "application/json;as=Table;g=meta.k8s.io;v=v1beta1"]
)
def test_other_forms_are_not_acceptable(accept: str) -> None:
    with pytest.raises(StatusError, match="only the following media types") as caught:
        frames.form(PODS, accept, "")
    assert caught.value.code == 406


def test_what_a_table_includes_is_one_of_three() -> None:
    with pytest.raises(StatusError, match='includeObject: "All"; allowed are None, Metadata, Object'):
        frames.form(PODS, KUBECTL, "All")


def test_a_list_has_its_version_and_the_objects() -> None:
    entries = [pod("a", 3), pod("b", 7)]
    body = orjson.loads(Form(PODS).many(Chunk(entries=entries, version=9)))
    assert body == {
        "kind": "GpuPodList",
        "apiVersion": "nvidia-gpu-scheduler/v1",
        "metadata": {"resourceVersion": "9"},
        "items": [orjson.loads(entry.body) for entry in entries],
    }
    chunk = Chunk(entries=entries, version=9, token="t", remaining=3)  # noqa: S106 - opaque
    metadata = {"resourceVersion": "9", "continue": "t", "remainingItemCount": 3}
    for form in (Form(PODS), Form(PODS, table=True)):
        assert orjson.loads(form.many(chunk))["metadata"] == metadata
    assert orjson.loads(Form(NODES).many(Chunk(entries=[], version=9)))["items"] == []


def test_frames_are_lines_as_the_api_server_writes_them() -> None:
    entry = pod("a", 3)
    lines = [
        Form(PODS).event("DELETED", entry),
        Form(PODS).bookmark(9),
        Form(PODS).bookmark(9, ends_state=True),
        frames.error(expired(1, 2)),
    ]
    assert all(line.endswith(b"}\n") and line.count(b"\n") == 1 for line in lines)
    deleted, bookmark, ended, failure = map(orjson.loads, lines)
    assert deleted == {"type": "DELETED", "object": orjson.loads(entry.body)}
    metadata = {"resourceVersion": "9", "creationTimestamp": None}
    bare = {"kind": "GpuPod", "apiVersion": "nvidia-gpu-scheduler/v1", "metadata": metadata}
    assert bookmark == {"type": "BOOKMARK", "object": bare}
    assert ended["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert failure == {
        "type": "ERROR",
        "object": {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "too old resource version: 1 (2)",
            "reason": "Expired",
            "code": 410,
        },
    }


def test_a_table_has_columns_and_cells() -> None:
    entry = pod("a", 3)
    table = orjson.loads(Form(PODS, table=True).many(Chunk(entries=[entry], version=9)))
    assert [column["name"] for column in table["columnDefinitions"]] == [
        *("Name", "Node", "GPUs", "Update", "IDs", "Created At")
    ]
    metadata = orjson.loads(entry.body)["metadata"]
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    assert table["rows"] == [{"cells": ["a", "n1", 1, "T", "GPU-0", "T"], "object": partial}]
    assert orjson.loads(Form(PODS, table=True, included="Object").one(entry))["rows"][0]["object"] == orjson.loads(
        entry.body
    )
    assert orjson.loads(Form(PODS, table=True, included="None").one(entry))["rows"][0]["object"] is None
    event = orjson.loads(Form(PODS, table=True).event("ADDED", entry))["object"]
    assert (event["kind"], event["metadata"]) == ("Table", {"resourceVersion": "3"})
    bookmark = orjson.loads(Form(PODS, table=True).bookmark(9))["object"]
    assert (bookmark["kind"], bookmark["rows"][0]["object"]["metadata"]["resourceVersion"]) == ("Table", "9")
