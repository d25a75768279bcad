"""Pods that a policy or webhook of an administrator, for example, gives to Berth during admission.

The API server runs mutating policies in no fixed order. There are many policies that name the scheduler, one for each
value of a label. Some of them run before Berth's policies and some after.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from berth_api import names
from berth_api.admission import injection
from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.policies.conftest import ACTIVE_SECONDS
from tests.integration.policies.test_other_webhook import Patch, our_policies, our_webhook, their_webhook
from tests.objects.builders import GPU, NVIDIA, SHARED
from tests.programs import policies

ORDERS: Final = 24
LABEL: Final = "example.com/team"
FILES: Final = ("injection.yaml", "words.yaml", "../components/isolation/policy.yaml")
MPS: Final = {names.ISOLATION_KEY: "mps"}
RULE: Final = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
ALL: Final = {"name": injection.VARIABLE, "value": "all"}
REQUESTS: Final[dict[str, dict[str, str]]] = {
    "kubelet's": {NVIDIA: "1"},
    "an instance": {"nvidia.com/mig-1g.10gb": "1"},
    "a word": {"nvidia.com/gpumem": "4000"},
    "a word next to cards": {NVIDIA: "2", "nvidia.com/gpucores": "50"},
    "a share": {GPU: "50"},
    "a NIC": {"nvidia.com/hostdev": "1"},
}


def theirs(arena: Arena, number: int) -> list[Manifest]:
    """Return a policy that gives the pods with a value of the label to Berth, and its binding."""
    name, group = f"their-{number}-{arena.id}", {"apiVersion": "admissionregistration.k8s.io/v1"}
    patch = f'[JSONPatch{{op: "replace", path: "/spec/schedulerName", value: "{arena.scheduler_name}"}}]'
    selected = {"matchLabels": {LABEL: str(number)}}
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [RULE], "objectSelector": selected},
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    policy = {**group, "kind": "MutatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec}
    binding = {**group, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": name}}
    return [policy, {**binding, "spec": {"policyName": name}}]


@contextlib.contextmanager
def applied(arena: Arena, documents: list[Manifest]) -> Iterator[None]:
    made = arena.apply(documents)
    try:
        yield
    finally:
        for document in made:
            arena.cluster.api.delete(arena.cluster.api.path_of(document))


def pod(arena: Arena, requests: dict[str, str], number: int, **fields: Any) -> Manifest:
    """Return a pod that names no scheduler, whose containers would all see all GPUs."""
    main = {"name": "main", "image": "none", "resources": {"limits": requests}, "env": [ALL]}
    agent, init = ({"name": name, "image": "none"} for name in ("agent", "init"))
    return arena.pod(
        labels={LABEL: str(number)},
        scheduler_name="default-scheduler",
        containers=[main, agent],
        initContainers=[init],
        **fields,
    )


def seen_too_much(made: Manifest) -> list[str]:
    """Return the containers that do not have exactly the variable that Berth gives them."""
    labels, annotations = injection.labels_of(made), injection.annotations_of(made)
    places = injection.places(made["spec"], labels, (), annotations)
    return [place.container["name"] for place in places if not place.is_filled]


def test_a_pod_of_any_order_of_policies_sees_only_its_own_gpus(arena: Arena) -> None:
    shipped = [each for file in FILES for each in policies.policies(file, arena)]
    policies_of_theirs = [each for number in range(ORDERS) for each in theirs(arena, number)]
    with applied(arena, [*shipped, *policies_of_theirs]):
        in_force(arena, *(pod(arena, {GPU: "50"}, number) for number in range(ORDERS)))
        claims = [{"name": "gpu", "resourceClaimName": "gpu"}]
        for number in range(ORDERS):
            made = {what: arena.admitted(pod(arena, requests, number)) for what, requests in REQUESTS.items()}
            made["a claim"] = arena.admitted(pod(arena, {}, number, resourceClaims=claims))
            assert {what: found for what, each in made.items() if (found := seen_too_much(each))} == {}
            worded = arena.admitted(pod(arena, REQUESTS["a word next to cards"], number, annotations=MPS))
            [main, _] = worded["spec"]["containers"]
            assert main["resources"]["requests"].keys() == {SHARED, "nvidia.com/gpucores", names.MPS_RESOURCE}


def in_force(arena: Arena, *probes: Manifest) -> None:
    """Wait until all probes are Berth's, and injected."""

    def are_injected() -> bool:
        with contextlib.suppress(ApiError):
            made = [arena.admitted(each) for each in probes]
            return all(
                each["spec"]["schedulerName"] == arena.scheduler_name and not seen_too_much(each) for each in made
            )
        return False

    waiting.until(are_injected, deadline=ACTIVE_SECONDS, what="the policies to be in force")


def kserves(arena: Arena) -> Patch:
    """Return a patch that gives a pod to Berth and adds containers, and when called again another one."""

    def patch(pod: Manifest) -> list[dict[str, Any]]:
        added = {"name": "again", "image": "none"}
        if any(each["name"] == "agent" for each in pod["spec"]["containers"]):
            return [{"op": "add", "path": "/spec/containers/-", "value": added}]
        return [
            {"op": "replace", "path": "/spec/schedulerName", "value": arena.scheduler_name},
            {"op": "add", "path": "/spec/containers/-", "value": {**added, "name": "agent"}},
            {"op": "add", "path": "/spec/initContainers", "value": [{**added, "name": "init"}]},
        ]

    return patch


@pytest.fixture
def plain(arena: Arena) -> Manifest:
    """Return a pod of kube-scheduler with a card of the device plugin's."""
    main = {"name": "main", "image": "none", "resources": {"limits": {NVIDIA: "1"}}, "env": [ALL]}
    side = {"name": "side", "image": "none"}
    return arena.pod(scheduler_name="default-scheduler", containers=[main, side])


@pytest.mark.parametrize("case", ["policies", "webhook, theirs first", "webhook, ours first"])
def test_what_a_webhook_adds_sees_nothing_or_is_refused(
    arena: Arena, tmp_path: Path, plain: Manifest, case: str
) -> None:
    first = case == "webhook, theirs first"
    probe = arena.pod(requests={GPU: "50"}, limits={GPU: "50"})
    ours = our_policies(arena) if case == "policies" else our_webhook(arena, tmp_path)
    with ours, applied(arena, refusing(arena, "MutatingWebhookConfiguration") if case != "policies" else []):
        in_force(arena, probe)
        with their_webhook(arena, tmp_path, first=first, patch=kserves(arena)):
            waiting.until(lambda: is_taken(arena, plain), deadline=ACTIVE_SECONDS, what="their webhook")
            made = arena.admitted(plain)
            assert [each["name"] for each in made["spec"]["containers"]] == ["main", "side", "agent"]
            assert seen_too_much(made) == []
        waiting.until(lambda: not is_taken(arena, plain), deadline=ACTIVE_SECONDS, what="their webhook to end")
        with their_webhook(arena, tmp_path, first=first, patch=kserves(arena), reinvocation="IfNeeded"):
            waiting.until(lambda: is_taken(arena, plain), deadline=ACTIVE_SECONDS, what="their webhook")
            if first:  # ours is called again after theirs
                assert seen_too_much(arena.admitted(plain)) == []
            else:  # once the policy that refuses is in force, too
                message = "container again would see GPUs of others"
                waiting.until(lambda: message in arena.refusal(plain), deadline=ACTIVE_SECONDS, what="a refusal")
            # It requests no device, so it runs in any case.
            idle = arena.pod(scheduler_name="default-scheduler", containers=[{"name": "main", "image": "none"}])
            assert arena.admitted(idle)["spec"]["schedulerName"] == arena.scheduler_name


def is_taken(arena: Arena, manifest: Manifest) -> bool:
    try:
        return bool(arena.admitted(manifest)["spec"]["schedulerName"] == arena.scheduler_name)
    except ApiError as error:
        return "would see GPUs of others" in str(error)


def refusing(arena: Arena, kind: str, version: str = "v1") -> list[Manifest]:
    """Return the policy that refuses what was not injected, for this kind of what injects, and its binding."""
    policy, binding = policies.policies("injection.yaml", arena)[-2:]
    policy["spec"]["paramKind"] = {"apiVersion": f"admissionregistration.k8s.io/{version}", "kind": kind}
    return [policy, binding]


@pytest.mark.parametrize("version", ["v1", "v9"], ids=["not applied", "not served"])
def test_where_nothing_injects_nothing_is_refused(arena: Arena, plain: Manifest, version: str) -> None:
    documents = refusing(arena, "MutatingAdmissionPolicy", version)
    seen = {"expression": "false", "message": "in force"}
    probe = policies.confined([{**PROBE, "spec": {**PROBE["spec"], "validations": [seen]}}, PROBE_BINDING], arena)
    plain["spec"]["schedulerName"] = arena.scheduler_name
    with applied(arena, documents):
        with applied(arena, probe):  # policies that are applied later are in force later
            waiting.until(lambda: "in force" in arena.refusal(plain), deadline=ACTIVE_SECONDS, what="a later policy")
        waiting.until(lambda: arena.refusal(plain) == "", deadline=ACTIVE_SECONDS, what="nothing to be refused")


PROBE: Final[Manifest] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "probe"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        }
    },
}
PROBE_BINDING: Final[Manifest] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "probe"},
    "spec": {"policyName": "probe", "validationActions": ["Deny"]},
}
