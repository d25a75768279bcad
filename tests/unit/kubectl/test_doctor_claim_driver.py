"""The doctor's findings about Berth's own driver of ResourceClaims."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from berth_agent.dra.preparation import NO_PROCESS
from berth_kubectl.doctor import claim_driver
from berth_kubectl.doctor.checks import diagnose
from berth_kubectl.doctor.facts import Installation
from berth_kubectl.doctor.gathering import gather
from berth_kubectl.transport.request import Request
from tests.objects.kubectl_objects import condition, raw_card, raw_device, raw_node
from tests.unit.kubectl.test_doctor import Api, Raw, healthy, named

SERVED = condition("ClaimsServed")
MIG = {"enabled": True, "instances": [{"id": "MIG-0"}]}
UNRESOLVED = (
    "CDI device injection failed: unresolvable CDI devices k8s.gpu.berth.dev/claim=0a-gpu-1, k8s.gpu.berth.dev/claim=b"
)


def node(label: str = "claims", runtime: str = "containerd://2.1.4") -> Raw:
    shown = raw_node("n", labels={"berth.dev/cards": label} if label else {})
    shown["status"]["nodeInfo"] = {"containerRuntimeVersion": runtime}
    return shown


def by_plugin(label: str) -> Raw:
    """Return a node whose kubelet remembers a card that the device plug-in does not offer any more."""
    shown = node(label)
    shown["status"]["capacity"] = {**shown["status"]["capacity"], "nvidia.com/gpu": "1"}
    shown["status"]["allocatable"] = {**shown["status"]["allocatable"], "nvidia.com/gpu": "0"}
    return shown


def device(*cards: Raw, served: Raw | None = SERVED, users: int = 0, holder: str = "x") -> Raw:
    holders = [{"namespace": "a", "name": holder}] * users
    uses = [{"type": "gpu", "minor": 0, "holders": holders}]
    return raw_device(
        "n", *(cards or (raw_card(),)), uses=uses, conditions=[condition("Ready"), *([served] if served else [])]
    )


def listed(uuid: str = "GPU-0", *, taint: str = "") -> Raw:
    shown = {"name": uuid.lower(), "attributes": {"uuid": {"string": uuid}}}
    taints = {"taints": [{"key": taint, "effect": "NoSchedule"}]} if taint else {}
    return {"metadata": {"name": "s"}, "spec": {"nodeName": "n", "devices": [{**shown, **taints}]}}


def starting(message: str, of: str = "containerStatuses") -> Raw:
    state = {"waiting": {"reason": "CreateContainerError", "message": message}}
    metadata = {"namespace": "a", "name": "x"}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {of: [{"name": "c", "state": state}]}}


UNHEALTHY = claim_driver.TAINT
MAKEABLE = {
    "metadata": {"name": "m"},
    "spec": {"nodeName": "n", "devices": [{"name": "i", "attributes": {"parentUUID": {"string": "GPU-0"}}}]},
}


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        pytest.param({"resourceslices": [listed()]}, "", id="sound"),
        pytest.param({"devices": [device(served=None)]}, "NoClaimDriver: berth.dev/cards=claims", id="no driver"),
        pytest.param({"nodes": [node("")], "devices": [device(served=None)]}, "", id="by name"),
        pytest.param({"nodes": [node("name")], "devices": [device()]}, "", id="by name, with the driver"),
        pytest.param({}, "StaleSlices: they lack GPU-0", id="a card is not listed"),
        pytest.param({"devices": [device(users=1)]}, "", id="a pod has it by name"),
        pytest.param(
            {"devices": [device(users=1, holder="resourceclaim/c")]},
            "StaleSlices: they lack GPU-0",
            id="a claim has it",
        ),
        pytest.param({"nodes": [node("shares")]}, "StaleSlices: they lack GPU-0", id="shares: a card is not listed"),
        pytest.param({"nodes": [node("shares")], "devices": [device(users=1)]}, "", id="shares: a pod has it by name"),
        pytest.param(
            {"nodes": [node("shares")], "devices": [device(served=None)]},
            "NoClaimDriver: berth.dev/cards=shares",
            id="shares: no driver",
        ),
        *(
            pytest.param(
                {"nodes": [by_plugin(label)], "devices": [device(users=1)], **slices},
                "",
                id=f"{label}: none by plug-in",
            )
            for label, slices in (("claims", {}), ("shares", {}), ("both", {"resourceslices": [listed()]}))
        ),
        pytest.param(
            {"nodes": [by_plugin("")], "devices": [device(served=None)]},
            "MissingCapacity: allocatable has nvidia.com/gpu: 0 of 1",
            id="by name: none by plug-in",
        ),
        pytest.param(
            {"nodes": [node("clams")], "devices": [device(served=None)]},
            "WithoutEffect: did you mean claims?",
            id="unknown, so by name",
        ),
        pytest.param(
            {"nodes": [node("both")], "devices": [device(raw_card(health=False), users=1)]},
            "StaleSlices: they lack GPU-0",
            id="both: a faulty card of a pod by name is listed with taints",
        ),
        pytest.param(
            {
                "nodes": [node("both")],
                "devices": [device(raw_card(health=False), users=1)],
                "resourceslices": [listed(taint=UNHEALTHY)],
            },
            "",
            id="both: sound",
        ),
        pytest.param(
            {"nodes": [node("both")], "devices": [device(raw_card(mig=MIG))], "resourceslices": [listed("MIG-0")]},
            "StaleSlices: they list MIG-0, but the node gives MIG instances by name",
            id="both: an instance is listed",
        ),
        pytest.param(
            {"nodes": [node("both")], "devices": [device(raw_card(mig=MIG))]}, "", id="both: instances by name"
        ),
        pytest.param({"devices": [device(raw_card(health=False))]}, "", id="the API server drops taints"),
        pytest.param(
            {"devices": [device(served=condition("ClaimsServed", "False", reason="SlicesNotWritten"))]},
            "FalseCondition: ClaimsServed is False (SlicesNotWritten)",
            id="the agent knows",
        ),
        pytest.param({"resourceslices": [listed(), MAKEABLE]}, "", id="an instance that can be made has no UUID"),
        pytest.param(
            {"nodes": [node("")], "resourceslices": [listed()]}, "StaleSlices: they list GPU-0, but", id="label gone"
        ),
        pytest.param(
            {"resourceslices": [listed(), listed("GPU-7")]}, "StaleSlices: the Device has no GPU-7", id="card gone"
        ),
        pytest.param(
            {"devices": [device(raw_card(mig=MIG))], "resourceslices": [listed()]},
            "StaleSlices: they lack MIG-0, and 1 more",
            id="the card in MIG mode is still listed",
        ),
        pytest.param(
            {"devices": [device(raw_card(mig=MIG))], "resourceslices": [listed("MIG-0")]}, "", id="an instance"
        ),
        pytest.param(
            {"devices": [device(raw_card(health=False))], "resourceslices": [listed()]},
            f"StaleSlices: GPU-0 lacks {UNHEALTHY}",
            id="faulty without a taint",
        ),
        pytest.param(
            {"devices": [device(raw_card(health=False))], "resourceslices": [listed(taint=UNHEALTHY)]}, "", id="faulty"
        ),
        pytest.param(
            {"resourceslices": [listed(taint=UNHEALTHY)]}, "StaleSlices: GPU-0 is healthy, but", id="taint stayed"
        ),
        pytest.param({"resourceslices": [listed(taint="other")]}, "", id="another's taint"),
        pytest.param(
            {"nodes": [node(runtime="containerd://1.6.36")], "resourceslices": [listed()]},
            "CdiNotRead: containerd://1.6.36 does not read CDI",
            id="runtime without CDI",
        ),
        pytest.param({"nodes": [node(runtime="cri-o://1.35.0")], "resourceslices": [listed()]}, "", id="CRI-O"),
        pytest.param(
            {"resourceslices": [listed()], "starting": [starting(UNRESOLVED)]},
            "CdiNotRead: the container runtime of n does not find",
            id="unresolved",
        ),
        pytest.param(
            {"resourceslices": [listed()], "starting": [starting(UNRESOLVED, "initContainerStatuses")]},
            "CdiNotRead: the container runtime of n does not find",
            id="unresolved, of an init container",
        ),
        pytest.param(
            {
                "resourceslices": [listed()],
                "starting": [starting("unresolvable CDI devices nvidia.com/gpu=0"), starting("image not found")],
            },
            "",
            id="of another driver",
        ),
    ],
)
def test_what_is_wrong_with_the_driver_is_found(lists: dict[str, list[Raw]], expected: str) -> None:
    facts = healthy()
    there = {"nodes": [node()], "devices": [device()], "leases": facts.lists["leases"]}
    found = diagnose(replace(facts, lists={**facts.lists, **there, **lists})).findings
    if not expected:
        assert found == ()
        return
    [finding] = found
    assert f"{finding.check}: {finding.message}".startswith(expected.partition(": ")[0])
    assert expected.partition(": ")[2] in finding.message
    assert finding.fix


@pytest.mark.parametrize(
    ("minor", "message", "fix"),
    [
        ("34+", "so its cards are given by name", "dra.enabled=true   # or remove the label"),
        (
            "30",
            "Kubernetes 1.30 is too old for such a driver",
            "label node n berth.dev/cards-   # claims need API server",
        ),
    ],
)
def test_a_driver_is_advised_only_where_the_api_server_can_have_one(minor: str, message: str, fix: str) -> None:
    facts = healthy()
    lists = {**facts.lists, "nodes": [node()], "devices": [device(served=None)]}
    [finding] = diagnose(replace(facts, lists=lists, server_version={"major": "1", "minor": minor})).findings
    assert finding.message.endswith(message)
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("reason", "message", "fix"),
    [
        ("PartitionsRefused", f"label berth.dev/partitions=all has no effect: {NO_PROCESS}", "partitions.enabled=true"),
        ("PartitionsRefused", "MIG mode of GPU-0 is off: turn it on, and reboot", "kubectl get pods "),
        (
            "PartitionsRefused",
            "partitions cannot be made on cards of this vendor",
            "label node n berth.dev/partitions-",
        ),
        ("SharesRefused", "cards of this vendor cannot be shared by claim", "label node n berth.dev/cards=claims"),
    ],
)
def test_what_keeps_parts_of_cards_from_being_given_is_found(reason: str, message: str, fix: str) -> None:
    refused = condition("ClaimsServed", "False", reason=reason, message=message)
    facts = healthy()
    there = {"nodes": [node()], "devices": [device(served=refused)], "resourceslices": [listed()]}
    [finding] = diagnose(replace(facts, lists={**facts.lists, **there})).findings
    assert message in finding.message
    assert fix in finding.fix


@pytest.mark.parametrize(("roles", "number"), [([], 0), ([named(claim_driver.ROLE)], 1)])
def test_slices_are_read_if_agents_are_drivers(roles: list[Raw], number: int) -> None:
    asked: list[str] = []

    class Recording(Api):
        def get_all(self, requests: Sequence[Request]) -> list[Any]:
            asked.extend(request.path for request in requests)
            answers = zip(requests, super().get_all(requests), strict=True)
            return [
                {"items": roles} if request.path.endswith("/clusterroles") else answer for request, answer in answers
            ]

    gather(Recording({}), Installation(), definitions=[], version="")
    assert asked.count("/apis/resource.k8s.io/v1/resourceslices") == number
