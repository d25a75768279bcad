"""What LimitRanges and ResourceQuotas make of pods; tests/integration compares this with the API server."""

from collections.abc import Mapping
from typing import Any

import pytest

from berth_operator.core.values import pod_admission
from berth_operator.core.values.pod_admission import NamespaceRules, PriorityClass
from berth_operator.state.objects.pod_admission import of_pod, read_limit_range, read_quota

Raw = dict[str, Any]
GPU = "nvidia.com/gpu"
OF_GPU = f"requests.{GPU}"


def spec(limits: Raw | None = None, requests: Raw | None = None, **more: Any) -> Raw:
    return {"containers": [{"name": "main", "resources": {"limits": limits or {}, "requests": requests or {}}}], **more}


def quota(hard: Raw, used: Raw | None = None, **more: Any) -> Raw:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **more}, "status": {"used": used or {}}}


def limit_range(kind: str = "Container", **bounds: Any) -> Raw:
    return {"metadata": {"name": "r"}, "spec": {"limits": [{"type": kind, **bounds}]}}


def refusal(pod: Raw, *rules: Raw, count: int = 1, kept: int = 0) -> str:
    ranges = tuple(entry for raw in rules if "limits" in raw["spec"] for entry in read_limit_range(raw))
    quotas = tuple(read_quota(raw) for raw in rules if "hard" in raw["spec"])
    rules_ = NamespaceRules(ranges=ranges, quotas=quotas)
    found = pod_admission.refusal([(of_pod(pod), count)], [(of_pod(pod), kept)], rules_)
    return "" if found is None else found.why


@pytest.mark.parametrize(
    ("pod", "hard", "used", "numbers", "why"),
    [
        (spec({GPU: "1"}), {OF_GPU: "0"}, {}, (12, 0), f": {OF_GPU}=12, used: {OF_GPU}=0, limited: {OF_GPU}=0"),
        (spec({GPU: "1"}), {OF_GPU: "12"}, {}, (12, 0), ""),
        (spec({GPU: "1"}), {OF_GPU: "12"}, {OF_GPU: "1"}, (12, 0), f"used: {OF_GPU}=1"),
        (spec({GPU: "1"}), {OF_GPU: "12"}, {}, (12, 1), f"kept for other pods: {OF_GPU}=1"),
        (spec({GPU: "1"}), {"pods": "11"}, {}, (12, 0), "requested: pods=12"),
        (spec({GPU: "1"}), {"count/pods": "11"}, {}, (12, 0), "requested: count/pods=12"),
        (spec({GPU: "1"}), {"requests.cpu": "8"}, {}, (1, 0), "failed quota: q: must specify requests.cpu"),
        (spec({"cpu": "1500m"}), {"requests.cpu": "4"}, {"requests.cpu": "2500m"}, (1, 0), ""),
        (spec({"cpu": "1501m"}), {"cpu": "4"}, {"cpu": "2500m"}, (1, 0), ": cpu=1501m, used: cpu=2500m, limited: "),
        (spec({"memory": "1Gi"}), {"limits.memory": "1Gi"}, {}, (2, 0), "requested: limits.memory=2Gi"),
        (spec({"ephemeral-storage": "1Gi"}), {"requests.ephemeral-storage": "1Gi"}, {}, (2, 0), "=2Gi"),
        (spec({"hugepages-2Mi": "2Mi"}), {"hugepages-2Mi": "2Mi"}, {}, (2, 0), "hugepages-2Mi=4194304"),
        # ResourceQuota does not count what is in the domain of Kubernetes.
        (spec({"kubernetes.io/gpu": "100"}), {"requests.kubernetes.io/gpu": "0"}, {}, (1, 0), ""),
        (spec({"cpu": "1"}, overhead={"cpu": "1"}), {"requests.cpu": "1"}, {}, (1, 0), "requested: requests.cpu=2"),
        (spec({"cpu": "1"}, resources={"requests": {"cpu": "3"}}), {"cpu": "2"}, {}, (1, 0), "requested: cpu=3"),
        (spec({GPU: "1"}), {"services": "0"}, {}, (1, 0), ""),
    ],
)  # fmt: skip
def test_a_quota_refuses_what_it_has_no_room_for(
    pod: Raw, hard: Raw, used: Raw, numbers: tuple[int, int], why: str
) -> None:
    count, kept = numbers
    refused = refusal(pod, quota(hard, used), count=count, kept=kept)
    assert why in refused
    assert bool(why) == bool(refused)


@pytest.mark.parametrize(("hard", "is_lasting"), [("1", True), ("2", False)])
def test_a_quota_that_is_only_full_may_have_room_later(hard: str, *, is_lasting: bool) -> None:
    rules = NamespaceRules(quotas=(read_quota(quota({OF_GPU: hard}, {OF_GPU: "1"})),))
    found = pod_admission.refusal([(of_pod(spec({GPU: "1"})), 2)], [], rules)
    assert found is not None
    assert found.is_lasting == is_lasting


@pytest.mark.parametrize(
    ("scopes", "pod", "counts"),
    [
        ({"scopes": ["Terminating"]}, spec(), False),
        ({"scopes": ["Terminating"]}, spec(activeDeadlineSeconds=5), True),
        ({"scopes": ["NotTerminating"]}, spec(), True),
        ({"scopes": ["NotTerminating", "BestEffort"]}, spec({GPU: "1"}), True),
        ({"scopes": ["BestEffort"]}, spec({"cpu": "1"}), False),
        ({"scopes": ["NotBestEffort"]}, spec({"cpu": "1"}), True),
        ({"scopes": ["NotBestEffort"]}, spec({"cpu": "0"}), False),
        ({"scopes": ["PriorityClass"]}, spec(), False),
        ({"scopes": ["CrossNamespacePodAffinity"]}, spec(), False),
        (
            {"scopes": ["CrossNamespacePodAffinity"]},
            spec(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["a"]}]}}),
            True,
        ),
        ({"operator": "In", "values": ["high"]}, spec(priorityClassName="high"), True),
        ({"operator": "In", "values": ["high"]}, spec(priorityClassName="low"), False),
        ({"operator": "NotIn", "values": ["high"]}, spec(), True),
        ({"operator": "DoesNotExist"}, spec(), True),
        ({"operator": "Exists"}, spec(), False),
    ],
)
def test_a_quota_counts_the_pods_of_its_scopes(scopes: Mapping[str, Any], pod: Raw, *, counts: bool) -> None:
    more = scopes
    if "operator" in scopes:
        more = {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", **scopes}]}}
    assert bool(refusal(pod, quota({"pods": "0"}, **more))) == counts


@pytest.mark.parametrize(
    ("pod", "rules", "why"),
    [
        (spec({GPU: "2"}), [limit_range(max={GPU: "1"})], f"maximum {GPU} usage per Container is 1, but limit is 2"),
        (spec({GPU: "2"}), [limit_range("Pod", max={GPU: "1"})], f"maximum {GPU} usage per Pod is 1, but limit is 2"),
        (spec(), [limit_range(max={GPU: "1"})], "but no limit is specified"),
        (spec(), [limit_range(max={"cpu": "1"}, default={"cpu": "1"}, defaultRequest={"cpu": "1"})], ""),
        (spec({"cpu": "1"}), [limit_range(min={"cpu": "2"})], "minimum cpu usage per Container is 2, but request is 1"),
        (spec(), [limit_range(min={"cpu": "2"})], "but no request is specified"),
        (
            spec({"cpu": "4"}, {"cpu": "1"}),
            [limit_range(maxLimitRequestRatio={"cpu": "2"})],
            "cpu max limit to request ratio per Container is 2, but provided is 4 to 1",
        ),
        (spec({"cpu": "2"}, {"cpu": "1"}), [limit_range(maxLimitRequestRatio={"cpu": "2"})], ""),
        # Defaults are counted.
        (spec(), [limit_range(defaultRequest={"cpu": "3"}), quota({"requests.cpu": "2"})], "requested: requests.cpu=3"),
        (spec(), [limit_range("PersistentVolumeClaim", max={"storage": "1"})], ""),
    ],
)
def test_a_limit_range_refuses_what_is_beyond_its_bounds(pod: Raw, rules: list[Raw], why: str) -> None:
    refused = refusal(pod, *rules)
    assert why in refused
    assert bool(why) == bool(refused)


@pytest.mark.parametrize(
    ("pod", "found"),
    [
        (spec(), (5, True)),
        (spec(priorityClassName="high"), (1000, False)),
        (spec(priorityClassName="high", preemptionPolicy="PreemptLowerPriority"), (1000, True)),
        (spec(priority=3), (3, True)),
        (spec(priority=9), (5, True)),
        (spec(priorityClassName="gone"), None),
    ],
)
def test_the_priority_is_that_of_the_class(pod: Raw, found: tuple[int, bool] | None) -> None:
    classes = {"high": PriorityClass(value=1000, preempts=False), "usual": PriorityClass(value=5, is_default=True)}
    assert pod_admission.priority_of(of_pod(pod), classes) == found


def test_without_a_default_class_the_priority_is_zero() -> None:
    assert pod_admission.priority_of(of_pod(spec()), {}) == (0, True)
