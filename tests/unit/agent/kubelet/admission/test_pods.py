"""Pods as the API server sends them, read for the mirror."""

from typing import Any

import pytest

from berth_agent.kubelet.admission import pods
from berth_api import names
from berth_api.resources import quantity

GPU = "nvidia.com/gpu"
ALLOCATED = (
    '{"gpu": [{"minor": 1, "id": "GPU-1", "resources": {"kubernetes.io/gpu-core": "100"}}],'
    ' "rdma": [{"minor": 0, "id": "0000:1a:00.0", "resources": {"kubernetes.io/rdma": "100"}}]}'
)


def raw(*containers: dict[str, Any], annotations: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    metadata = {"uid": "u", "namespace": "ns", "name": "p", "resourceVersion": "7", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": list(containers)}, **fields}


@pytest.mark.parametrize(
    ("limits", "wants"),
    [
        ({GPU: "2"}, {GPU: 2}),
        ({GPU: "0"}, {}),
        ({"nvidia.com/gpu.shared": "1"}, {"nvidia.com/gpu.shared": 1}),
        ({"nvidia.com/mig-1g.10gb": "3", "cpu": "1"}, {"nvidia.com/mig-1g.10gb": 3}),
        ({"nvidia.com/hostdev": "1"}, {}),
        ({"kubernetes.io/gpu-core": "50"}, {}),
        ({GPU: "1k"}, {GPU: 1000}),
        ({GPU: "1" * 70, "cpu": "1" * 70}, {GPU: quantity.MAX}),
        ({GPU: "1e3000", "memory": "1e3000"}, {GPU: quantity.MAX}),
        ({GPU: "1e-3000", "memory": "1e-3000"}, {GPU: 1}),
    ],
)
def test_a_container_wants_what_the_plugin_offers(limits: dict[str, str], wants: dict[str, int]) -> None:
    pod = pods.of_object(raw({"name": "main", "resources": {"limits": limits}}))
    assert pod.containers[0].wants == wants
    assert pod.uses_plugin == bool(wants)


def test_init_containers_come_first_and_those_that_stay_do_not_end() -> None:
    sent = raw({"name": "main"})
    sent["spec"]["initContainers"] = [{"name": "one"}, {"name": "side", "restartPolicy": "Always"}]
    assert [(container.name, container.ends) for container in pods.of_object(sent).containers] == [
        ("one", True),
        ("side", False),
        ("main", False),
    ]


def test_annotations_give_the_gpus_of_the_pod_and_of_each_container() -> None:
    annotations = {names.ALLOCATED: ALLOCATED, "main" + names.VISIBLE_SUFFIX: "GPU-1,GPU-2"}
    pod = pods.of_object(raw({"name": "main"}, {"name": "other"}, annotations=annotations))
    assert pod.granted == ("GPU-1",)
    assert [container.visible for container in pod.containers] == [("GPU-1", "GPU-2"), ()]


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"gpu": [{"minor": -1}]}', '{"gpu": 3}'])
def test_an_annotation_that_is_no_allocation_gives_nothing(text: str) -> None:
    assert pods.of_object(raw({"name": "main"}, annotations={names.ALLOCATED: text})).granted == ()


@pytest.mark.parametrize(
    ("status", "started", "ended"),
    [
        ({}, False, False),
        ({"phase": "Pending"}, False, False),
        ({"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}, True, False),
        ({"phase": "Succeeded"}, False, True),
        ({"phase": "Failed"}, False, True),
    ],
)
def test_the_status_shows_whether_a_pod_was_admitted_and_whether_it_ended(
    status: dict[str, str], *, started: bool, ended: bool
) -> None:
    pod = pods.of_object(raw({"name": "main"}, status=status))
    assert (pod.started, pod.ended, pod.version, pod.key) == (started, ended, 7, "ns/p")


@pytest.mark.parametrize(
    ("annotations", "cgroup_uid"),
    [
        ({"kubernetes.io/config.hash": "0f" * 16, "kubernetes.io/config.mirror": "0f" * 16}, "0f" * 16),
        # Any user may write it on a pod, which would have the processes of another pod, and hide its own.
        ({"kubernetes.io/config.hash": "uid-of-another"}, "u"),
        ({}, "u"),
    ],
)
def test_only_a_static_pod_has_processes_under_another_uid(annotations: dict[str, str], cgroup_uid: str) -> None:
    assert pods.of_object(raw({"name": "main"}, annotations=annotations)).cgroup_uid == cgroup_uid
