"""Which containers get the variable. tests/integration/policies compares this with the API server's policy."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api.admission import injection
from berth_operator.apis.webhook.mutations import patch
from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.state.objects import pods
from tests.objects.builders import GPU, NVIDIA, RDMA, Raw, container, fleet, pod

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
HALF = {GPU: "50"}
PLAIN = {"name": "PLAIN", "value": "1"}
VOID = {"name": VARIABLE, "value": "void"}
LITERAL = {"name": VARIABLE, "value": "all"}


def bare(*containers: Raw, **spec: Any) -> Raw:
    return {"metadata": {"labels": spec.pop("labels", {})}, "spec": {"containers": list(containers), **spec}}


def seen(name: str, **fields: str) -> Raw:
    path = f"metadata.annotations['{name}.devices.berth.dev/visible']"
    return {"name": VARIABLE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path} | fields}}


def lacking(manifest: Raw) -> tuple[str, ...]:
    return injection.lacking(manifest["spec"], manifest["metadata"]["labels"])


WHICH_CONTAINERS_LACK_IT = {
    "nothing there": (bare(container("a", HALF)), ("a",)),
    "all well": (bare(container("a", HALF, env=[seen("a")])), ()),
    "in any place": (bare(container("a", HALF, env=[PLAIN, seen("a"), PLAIN])), ()),
    "a literal": (bare(container("a", HALF, env=[LITERAL])), ("a",)),
    "the last one counts": (bare(container("a", HALF, env=[seen("a"), LITERAL])), ("a",)),
    "the last one counts, all well": (bare(container("a", HALF, env=[LITERAL, seen("a")])), ()),
    "another's annotation": (bare(container("a", HALF, env=[seen("b")])), ("a",)),
    "void, but it asks": (bare(container("a", HALF, env=[VOID])), ("a",)),
    "a pod that requests nothing": (bare(container("a", HALF, env=[seen("a")]), container("b")), ("b",)),
    "void": (bare(container("a", HALF, env=[seen("a")]), container("b", env=[VOID])), ()),
    "init containers": (
        bare(container("a", HALF, env=[seen("a")]), initContainers=[container("i"), container("j", HALF)]),
        ("i", "j"),
    ),
    "no GPUs": (bare(container("a"), container("b")), ()),
    "no GPUs, in so many words": (bare(container("a", {GPU: "0"})), ()),
    "NICs alone": (bare(container("a", {RDMA: "100"})), ()),
    "kubelet's": (bare(container("a", {NVIDIA: "1"})), ()),
    "next to kubelet's, added after the injection": (
        bare(container("a", {NVIDIA: "1"}), container("b", env=[VOID]), container("c", env=[LITERAL])),
        ("c",),
    ),
    "alone": (bare(container("a", {NVIDIA: "1"}), container("b", env=[LITERAL])), ()),
    "of a plugin": (bare(container("a", HALF, env=[seen("a")]), container("b", {"nvidia.com/a100": "1"})), ()),
    "of a plugin, with all GPUs": (
        bare(container("a", HALF, env=[seen("a")]), container("b", {"nvidia.com/nic": "1"}, env=[LITERAL])),
        ("b",),
    ),
    "labels": (bare(container("a"), container("b"), labels={"genius/gpu-number": "1"}), ("a", "b")),
    "a model asks for nothing": (bare(container("a"), labels={"genius/gpu-model": "A100"}), ()),
}


@pytest.mark.parametrize(("manifest", "expected"), WHICH_CONTAINERS_LACK_IT.values(), ids=WHICH_CONTAINERS_LACK_IT)
def test_which_containers_lack_it(manifest: Raw, expected: tuple[str, ...]) -> None:
    assert lacking(manifest) == expected


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        pytest.param(bare(container("a")), {"a": [VOID]}, id="nothing"),
        pytest.param(bare(container("a", {GPU: "0"}, env=[LITERAL])), {"a": [VOID]}, id="no GPUs, in so many words"),
        pytest.param(bare(container("a", {RDMA: "1"}, env=[PLAIN])), {"a": [VOID, PLAIN]}, id="NICs alone"),
        pytest.param(bare(container("a", {NVIDIA: "1"})), {"a": None}, id="kubelet's"),
        pytest.param(bare(container("a", {NVIDIA: "1"}, env=[PLAIN])), {"a": [PLAIN]}, id="kubelet's, others stay"),
        pytest.param(
            bare(container("a", {NVIDIA: "1"}, env=[LITERAL, PLAIN])), {"a": [PLAIN]}, id="kubelet's, removed"
        ),
        pytest.param(bare(container("a", {NVIDIA: "0"}, env=[LITERAL])), {"a": [VOID]}, id="none of kubelet's"),
        pytest.param(
            bare(container("a", {NVIDIA: "1"}), initContainers=[container("i")]),
            {"i": [VOID], "a": None},
            id="next to kubelet's",
        ),
    ],
)
def test_a_container_that_was_given_no_device_sees_none(manifest: Raw, expected: dict[str, list[Raw] | None]) -> None:
    spec = injection.injected(manifest)["spec"]
    containers = (*spec.get("initContainers", ()), *spec["containers"])
    assert {each["name"]: each.get("env") for each in containers} == expected
    assert lacking(manifest) == ()


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param({"nvidia.com/hostdev": "1"}, [VOID], id="another plugin's"),
        pytest.param({"nvidia.com/gpus": "1"}, [VOID], id="nearly the name"),
        pytest.param({"nvidia.com/a200": "1"}, [VOID], id="a name that is not listed"),
        pytest.param({"nvidia.com/hostdev": "1", "nvidia.com/gpu": "0"}, [VOID], id="none of the GPUs"),
        pytest.param({"nvidia.com/gpu": "1"}, [], id="GPUs"),
        pytest.param({"nvidia.com/gpu.shared": "1"}, [], id="replicas"),
        pytest.param({"nvidia.com/mig-1g.10gb.shared": "1"}, [], id="instances"),
        pytest.param({"nvidia.com/a100": "1"}, [], id="a listed name"),
        pytest.param({"nvidia.com/hostdev": "1", "nvidia.com/a100": "1"}, [], id="both plugins'"),
    ],
)
def test_only_names_of_gpus_leave_the_variable_to_the_plugin(requests: dict[str, str], expected: list[Raw]) -> None:
    pod = injection.injected(bare(container("a", requests, env=[LITERAL])), frozenset({"nvidia.com/a100"}))
    assert pod["spec"]["containers"][0]["env"] == expected


# --- which cards a bound pod sees -----------------------------------------------------------------------------------

FORGED = {"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['mine']"}}}


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        pytest.param(bare(container("a", env=[VOID])), set(), id="void"),
        pytest.param(bare(container("a", env=[seen("a")])), {"a.devices.berth.dev/visible"}, id="the annotation"),
        pytest.param(bare(container("a", env=[LITERAL, VOID])), set(), id="the last one counts"),
        pytest.param(bare(container("a", env=[VOID, LITERAL])), None, id="a literal"),
        pytest.param(bare(container("a")), None, id="the image decides"),
        pytest.param(bare(container("a", env=[FORGED])), None, id="an annotation that anybody may write"),
        pytest.param(bare(container("a", env=[VOID]), container("b")), None, id="one of two"),
        pytest.param(bare(container("a", env=[VOID]), initContainers=[container("b")]), None, id="an init container"),
        pytest.param(bare(container("a", env=[VOID]), ephemeralContainers=[container("b")]), None, id="ephemeral"),
        pytest.param(bare(container("a", env=[VOID], securityContext={"privileged": True})), None, id="privileged"),
        pytest.param(bare(container("a", env=[VOID], securityContext={"privileged": False})), set(), id="unprivileged"),
    ],
)
def test_which_annotations_decide_what_a_pod_sees(manifest: Raw, expected: set[str] | None) -> None:
    assert injection.annotations_read(manifest["spec"]) == expected


ENTRIES = st.sampled_from([PLAIN, LITERAL, VOID, seen("c0"), seen("c1")])


@st.composite
def manifests(draw: st.DrawFn) -> Raw:
    amounts = st.sampled_from([{}, HALF, {RDMA: "1"}, {GPU: "0"}, {NVIDIA: "1"}, {"koordinator.sh/gpu-core": "5"}])
    containers = [
        container(f"c{number}", draw(amounts), **draw(st.sampled_from([{}, {"env": draw(st.lists(ENTRIES))}])))
        for number in range(draw(st.integers(1, 5)))
    ]
    initial = draw(st.integers(0, len(containers) - 1))
    labels = draw(st.sampled_from([{}, {"genius/gpu-memory-each": "1"}]))
    return bare(*containers[initial:], **({"initContainers": containers[:initial]} if initial else {}), labels=labels)


@given(manifests())
def test_a_patch_makes_a_pod_well_once_and_changes_nothing_else(manifest: Raw) -> None:
    before = copy.deepcopy(manifest)
    after = jsonpatch.apply_patch(manifest, patch(manifest, injection.injected(manifest)))
    assert manifest == before
    assert after == injection.injected(manifest)
    assert lacking(after) == ()
    assert patch(after, injection.injected(after)) == []
    assert without(after) == without(manifest)


def without(manifest: Raw) -> Raw:
    """The pod without all that is the variable's."""
    left = copy.deepcopy(manifest)
    for each in (*left["spec"]["containers"], *left["spec"].get("initContainers", ())):
        each["env"] = [entry for entry in each.get("env", ()) if entry["name"] != VARIABLE]
    return left


# --- ephemeral containers -----------------------------------------------------------------------------------


def debugger(name: str, target: str = "", *env: Raw) -> Raw:
    return {"name": name, "env": list(env), **({"targetContainerName": target} if target else {})}


@pytest.mark.parametrize(
    ("containers", "labels", "expected"),
    [
        pytest.param([container("a", HALF), container("b")], {}, [[seen("a")], [VOID], [VOID]], id="shares"),
        pytest.param(
            [container("a"), container("b")],
            {"genius/gpu-number": "1"},
            [[seen("a")], [seen("b")], [VOID]],
            id="labels",
        ),
        pytest.param([container("a", {NVIDIA: "1"}), container("b")], {}, [[VOID], [VOID], [VOID]], id="kubelet's"),
        pytest.param([container("a"), container("b")], {}, [[VOID], [VOID], [VOID]], id="no GPUs"),
    ],
)
def test_an_ephemeral_container_sees_what_its_target_sees(
    containers: list[Raw], labels: Raw, expected: list[list[Raw]]
) -> None:
    existing, fresh = debugger("d0", "a", LITERAL), [debugger("d1", "a", LITERAL), debugger("d2", "b"), debugger("d3")]
    before = bare(*containers, labels=labels, ephemeralContainers=[existing])
    after = bare(*containers, labels=labels, ephemeralContainers=[existing, *fresh])
    patched = jsonpatch.apply_patch(after, patch(after, injection.joined(after, before)))
    assert [ephemeralContainer["env"] for ephemeralContainer in patched["spec"]["ephemeralContainers"]] == [
        [LITERAL],
        *expected,
    ]
    assert patched["spec"]["containers"] == containers


# --- what decisions make of it ------------------------------------------------------------------------------


def test_a_pod_that_lacks_it_is_not_placed_and_its_message_says_what_to_do() -> None:
    raw = pod("p", HALF)
    raw["spec"]["containers"] = [container("main", HALF), container("log", env=[VOID]), container("side")]
    waiting = pods.pending(pods.transform(raw))
    found = decide(fleet(), waiting, Policy())
    assert isinstance(found, Failure)
    assert found.message == (
        "0/1 nodes are available: NotInjected: NVIDIA_VISIBLE_DEVICES of container main, side is not Berth's "
        "(apply manifests/base/injection.yaml or the webhook, then create the pod again)."
    )
    assert not isinstance(decide(fleet(), waiting, Policy(switched_off=frozenset({"injected"}))), Failure)
