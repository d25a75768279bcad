"""What Berth expects of LimitRanges and ResourceQuotas is what the API server's admission does: on generated rules."""

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from berth_operator.core.values import pod_admission
from berth_operator.core.values.pod_admission import NamespaceRules
from berth_operator.state.objects.pod_admission import of_pod, read_limit_range, read_quota
from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError
from tests.differential import evictions

Raw = dict[str, Any]
SETS: Final = 16
"""Namespaces, each with rules of its own."""
PODS: Final = 12
"""Pods that are tried in each of them."""
SEED: Final = 82
PRIORITIES: Final = (0, 7)
GPU: Final = "nvidia.com/gpu"
HARD: Final = (
    "pods",
    "count/pods",
    "cpu",
    "requests.cpu",
    "limits.cpu",
    "requests.memory",
    "limits.memory",
    f"requests.{GPU}",
)
SCOPES: Final = ("Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass")


def quantity(generator: random.Random, name: str) -> str:
    if name.endswith("memory"):
        return generator.choice(["0", "512Mi", "1Gi", "2Gi"])
    return generator.choice(
        ["0", "1", "2", "3"] if name.endswith(GPU) or "pods" in name else ["0", "500m", "1", "2500m"]
    )


def quota(generator: random.Random, name: str, classes: list[str]) -> Raw:
    scopes: Raw = {}
    hard: tuple[str, ...] = HARD
    match generator.randrange(3):
        case 0:
            scope = generator.choice(SCOPES)
            hard = ("pods",) if scope == "BestEffort" else HARD[2:]
            scopes = {"scopes": [scope]}
        case 1:
            operator = generator.choice(["In", "NotIn", "Exists", "DoesNotExist"])
            expression: Raw = {"scopeName": "PriorityClass", "operator": operator}
            if operator in ("In", "NotIn"):
                expression["values"] = [generator.choice(classes)]
            scopes = {"scopeSelector": {"matchExpressions": [expression]}}
            hard = HARD[2:]
    named = generator.sample(hard, generator.randint(1, min(3, len(hard))))
    spec = {"hard": {each: quantity(generator, each) for each in named}, **scopes}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}


def limit_range(generator: random.Random) -> Raw:
    kind, name = generator.choice(["Container", "Pod"]), generator.choice(["cpu", "memory", GPU])
    low, high = ("1", "2") if name == GPU else ("512Mi", "1Gi") if name == "memory" else ("500m", "1")
    bounds: Raw = generator.choice(
        [{"max": {name: high}}, {"min": {name: low}}, {"min": {name: low}, "max": {name: high}}]
    )
    if name != GPU and generator.randrange(3) == 0:
        bounds = {"maxLimitRequestRatio": {name: "2"}}
    if kind == "Container" and generator.randrange(2):
        bounds |= {"default": {name: high}, "defaultRequest": {name: high if name == GPU else low}}
    limits = [{"type": kind, **bounds}]
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "range"}, "spec": {"limits": limits}}


def container(generator: random.Random, name: str) -> Raw:
    limits = {each: quantity(generator, each) for each in ("cpu", "memory", GPU) if generator.randrange(2)}
    requests = {each: amount for each, amount in limits.items() if generator.randrange(2) or each == GPU}
    if "cpu" in limits and limits["cpu"] == "1" and generator.randrange(2):
        requests["cpu"] = "250m"
    return {"name": name, "image": "none", "resources": {"limits": limits, "requests": requests}}


def pod(generator: random.Random, number: int, classes: list[str]) -> Raw:
    spec: Raw = {"containers": [container(generator, f"c{index}") for index in range(generator.randint(1, 2))]}
    if generator.randrange(3) == 0:
        spec["initContainers"] = [container(generator, "init")]
        if generator.randrange(2):
            spec["initContainers"][0]["restartPolicy"] = "Always"
    if generator.randrange(3) == 0:
        spec["activeDeadlineSeconds"] = 60
    if generator.randrange(2):
        spec["priorityClassName"] = generator.choice(classes)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": spec}


@pytest.fixture(scope="module")
def classes(arena: Arena) -> Iterator[list[str]]:
    evictions.make_classes(arena, PRIORITIES)
    yield [evictions.class_name(arena, priority) for priority in PRIORITIES]
    evictions.remove_classes(arena)


@pytest.fixture(scope="module")
def arena(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    own = Arena(cluster=cluster, folder=tmp_path_factory.mktemp("arena"))
    own.open()
    yield own
    own.close()


def test_admission_is_expected_as_it_is(arena: Arena, classes: list[str]) -> None:
    api, generator = arena.cluster.api, random.Random(SEED)
    rules: dict[str, list[Raw]] = {}
    for number in range(SETS):
        namespace = f"{arena.namespace}-{number}"
        api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        rules[namespace] = [quota(generator, f"quota{index}", classes) for index in range(generator.randint(0, 2))]
        rules[namespace] += [limit_range(generator)] if generator.randrange(2) else []
        for each in rules[namespace]:
            plural = f"{each['kind'].lower()}s"
            api.post(f"/api/v1/namespaces/{namespace}/{plural}", each)
    outcomes = {False: 0, True: 0}
    try:
        for namespace, own in rules.items():
            path = f"/api/v1/namespaces/{namespace}"

            def known(path: str = path) -> bool:
                quotas = api.get(f"{path}/resourcequotas")["items"]
                accounts = api.get(f"{path}/serviceaccounts")["items"]
                return bool(accounts) and all(each.get("status", {}).get("hard") for each in quotas)

            waiting.until(known, deadline=60, what=f"the quotas of {namespace}")
            quotas = tuple(map(read_quota, api.get(f"{path}/resourcequotas")["items"]))
            ranges = tuple(
                entry for each in api.get(f"{path}/limitranges")["items"] for entry in read_limit_range(each)
            )
            for number in range(PODS):
                raw = pod(generator, number, classes)
                rules_ = NamespaceRules(ranges=ranges, quotas=quotas)
                refused = pod_admission.refusal([(of_pod(raw["spec"]), 1)], (), rules_)
                expected = "" if refused is None else refused.why
                answers: list[str] = []

                def agrees(
                    raw: Raw = raw, path: str = path, expected: str = expected, answers: list[str] = answers
                ) -> bool:
                    try:
                        api.request("POST", f"{path}/pods?dryRun=All", body=raw)
                    except ApiError as error:
                        answers.append(str(error))
                        return bool(expected)
                    answers.append("")
                    return not expected

                # The admission plug-ins of the API server may see the rules a moment later.
                try:
                    waiting.until(agrees, deadline=20, what="the same answer")
                except waiting.WaitError:
                    pytest.fail(f"{own}\n{raw}\nexpected: {expected}\nanswer: {answers[-1]}")
                outcomes[bool(expected)] += 1
    finally:
        for namespace in rules:
            api.delete(f"/api/v1/namespaces/{namespace}")
    assert min(outcomes.values()) > SETS * PODS // 6, outcomes
