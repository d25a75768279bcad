"""Manifests of other systems, as the operator reads them."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from berth_api import resources, words
from berth_api.names import GPU
from berth_operator.core.values.request import PendingPod
from berth_operator.state.objects import pods
from tests import manifests_of_others as manifests

Raw = dict[str, Any]
FILES = manifests.files()


def described(raw: Raw) -> Raw:
    """Return what the operator reads of a pod, in the form of an answer."""
    pending = pods.pending(raw)
    if pending.error:
        return {"refused": pending.error}
    request = pending.request
    fields: Raw = {
        "gets": words.plain.text(request.devices),
        "model": str(request.model),
        "cards": cards(pending),
        "topology": request.devices.topology and topology(pending),
        "together": request.devices.joint and list(request.devices.joint.types),
        "gang": pending.gang and gang(pending),
        "sees": seen(pending),
        "unlimited": list(request.unlimited),
        "notes": notes(raw),
    }
    return {name: value for name, value in fields.items() if value}


def seen(pending: PendingPod) -> dict[str, list[int]]:
    seen: dict[str, list[int]] = {}
    for share in pending.request.shares:
        seen.setdefault(share.container, []).extend(range(share.first, share.end))
    return seen


def cards(pending: PendingPod) -> Raw:
    part = next((each for each in pending.request.devices.parts if each.type == GPU), None)
    return {requirement.operator: list(requirement.values) for requirement in part.of_cards} if part else {}


def topology(pending: PendingPod) -> str:
    wanted = pending.request.devices.topology
    assert wanted is not None
    return f"{wanted.level} {'required' if wanted.required else 'preferred'}"


def gang(pending: PendingPod) -> str:
    assert pending.gang is not None
    return pending.gang.key if pending.gang.minimum is None else f"{pending.gang.key} of {pending.gang.minimum}"


def notes(raw: Raw) -> list[str]:
    metadata = raw["metadata"]
    return list(words.read(raw["spec"], metadata.get("annotations", {}), metadata.get("labels", {})).notes)


@pytest.mark.parametrize("file", FILES, ids=manifests.name)
def test_a_manifest_is_read_as_its_source_means_it_or_answered(file: Path) -> None:
    assert described(manifests.pod(file)) == manifests.answer(file)


@pytest.mark.parametrize("file", FILES, ids=manifests.name)
def test_a_rewritten_manifest_means_the_same(file: Path) -> None:
    raw = manifests.pod(file)
    metadata = raw["metadata"]
    if "refused" in manifests.answer(file):
        return
    reading = words.read(raw["spec"], metadata.get("annotations", {}), metadata.get("labels", {}))
    rewritten = {"annotations": dict(reading.annotations), "labels": dict(reading.labels)}
    again = described({"metadata": {**metadata, **rewritten}, "spec": resources.from_limits(reading.spec)})
    expected = {name: value for name, value in manifests.answer(file).items() if name != "notes"}
    assert {name: value for name, value in again.items() if name != "notes"} == expected


def test_every_manifest_has_an_answer_and_there_are_enough() -> None:
    counted = Counter(file.parent.name for file in FILES)
    assert counted.total() >= 60
    assert all(counted[system] >= 8 for system in ("koordinator", "hami", "nvidia", "kai", "volcano"))
    for folder in {file.parent for file in FILES}:
        assert manifests.answers(folder).keys() == {file.stem for file in FILES if file.parent == folder}


@pytest.mark.parametrize(
    ("annotations", "resources_", "read"),
    [
        (
            {"nvidia.com/nouse-gputype": "A100", "nvidia.com/use-gpuuuid": "GPU-1,GPU-2"},
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},
            (
                "nvidia.com/gpu, nvidia.com/gpumem are read as 1 card of 3000 MiB; "
                "annotation nvidia.com/nouse-gputype is read as any model but *A100*; "
                "annotation nvidia.com/use-gpuuuid is read as only GPU GPU-1 or GPU-2"
            ),
        ),
        (
            {"nvidia.com/use-gputype": "A100,H100", "nvidia.com/numa-bind": "true"},
            {"nvidia.com/gpu": "1"},
            (
                "annotation nvidia.com/use-gputype is read as model *A100* or *H100*; "
                "annotation nvidia.com/numa-bind is read as annotation berth.dev/gpu-topology: numa"
            ),
        ),
    ],
)
def test_each_word_is_said_by_what_it_does(annotations: Raw, resources_: Raw, read: str) -> None:
    containers = [{"name": "main", "resources": {"limits": resources_, "requests": resources_}}]
    metadata = {"name": "a", "namespace": "ns", "uid": "u", "annotations": annotations}
    pending = pods.pending(
        {"metadata": metadata, "spec": {"schedulerName": "berth-scheduler", "containers": containers}}
    )
    assert pending.request.read == read


def test_devices_of_other_vendors_are_called_by_their_names() -> None:
    limits = {"huawei.com/npu-core": "100", "kubernetes.io/gpu-memory-ratio": "100"}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]}
    pending = pods.pending({"metadata": {"name": "a", "namespace": "ns", "uid": "u"}, "spec": spec})
    assert words.plain.text(pending.request.devices) == "1 whole Huawei NPU"
