"""kube-scheduler is kept off Berth's pools of ResourceSlices if the API server serves DeviceTaintRules."""

import json
import sys
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devcluster import Arena, Cluster, waiting
from devcluster.control_plane.api import Api, ApiError
from tests.conftest import prepare
from tests.integration.operator.test_claims import BY_NAME, CARDS, Driver, holders
from tests.integration.operator.world import World
from tests.objects.resource_claims import NVIDIA_DRIVER

GATE: Final = "--feature-gates=DRADeviceTaintRules=true"
ARGUMENTS: Final = {
    "kube-apiserver": [GATE, "--runtime-config=resource.k8s.io/v1beta2=true"],
    "kube-controller-manager": [GATE],
    "kube-scheduler": [GATE],
}
RULES: Final = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
COMPONENT: Final = Path(__file__).parents[3] / "manifests/components/claims"
LABEL: Final = "berth.dev/own-pool"
NAME: Final = "berth-0123456789abcdef"
POLICY: Final = "berth-claims-taints"
ADDED: Final = "example.com/added"
PROTECTED: Final = "berth.dev/epoch"
"""A key that is listed as added by other admission, and is not accepted."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a control plane whose API server serves DeviceTaintRules."""
    with Cluster(folder=tmp_path_factory.mktemp("serving") / "cluster", extra_args=ARGUMENTS) as running:
        prepare(running)
        yield running


@pytest.fixture
def tainted(serving: Cluster, tmp_path: Path) -> Iterator[World]:
    """Return an arena on an API server with DeviceTaintRules."""
    arena = Arena(cluster=serving, folder=tmp_path)
    arena.open()
    own = World(arena=arena, folder=tmp_path)
    yield own
    own.close()
    # pytest shows the output if the test failed.
    sys.stdout.write(own.processes.tails())


def test_other_schedulers_are_kept_from_the_pools_of_berth(tainted: World, tmp_path: Path) -> None:
    [role, _] = yaml.safe_load_all((COMPONENT / "rbac.yaml").read_text())
    tainted.arena.apply([role])
    ours, theirs = f"{tainted.arena.id}-0", f"{tainted.arena.id}-1"
    file = tmp_path / "berth.yaml"
    configuration = {
        "apiVersion": "config.berth.dev/v1alpha1",
        "kind": "BerthSchedulerConfiguration",
        "profiles": [
            {"schedulerName": tainted.arena.scheduler_name, "plugins": {"filters": {"disabled": ["injected"]}}}
        ],
        "claims": {"pools": [f"{NVIDIA_DRIVER}/{ours}"]},
    }
    file.write_text(yaml.safe_dump(configuration))
    tainted.operator(config=file, scheduler_names=None, taint_own_pools=True)
    tainted.agent()
    assert tainted.nodes(2, gpus=CARDS) == [ours, theirs]
    [rule] = tainted.wait(lambda: tainted.api.get(RULES)["items"], what="the rule")
    assert rule["spec"]["deviceSelector"] == {"driver": NVIDIA_DRIVER, "pool": ours}
    driver = Driver(tainted)
    for node in (ours, theirs):
        driver.lists(node, range(CARDS))
    tainted.wait_condition(theirs, "GivenByName", "False")
    claims = driver.pods(2 * CARDS)
    tainted.pods([f"by-name-{number}" for number in range(2 * CARDS)], BY_NAME)
    tainted.wait(lambda: len(tainted.bound_names()) == 2 * CARDS, what="all cards to be given")
    found = holders(tainted)
    assert {len(pods) for pods in found.values()} == {1}
    assert {node for (node, _), [name] in found.items() if name.startswith(tuple(claims))} == {theirs}
    assert {node for (node, _), [name] in found.items() if name.startswith("by-name")} == {ours}

    tainted.api.delete(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role['metadata']['name']}")
    configuration["claims"] = {}
    file.write_text(yaml.safe_dump(configuration))
    tainted.wait(lambda: not tainted.api.get(RULES)["items"], what="the end of the rule")


def rule(name: str = NAME, selector: Mapping[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a DeviceTaintRule as the operator creates it, with changes of its metadata, or its taint."""
    owner = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "berth-claims", "uid": "u"}
    taint = changes.pop("taint", {"key": LABEL, "effect": "NoSchedule"})
    metadata = {"name": name, "labels": {LABEL: "a"}, "ownerReferences": [owner], **changes}
    selected = {"driver": "d", "pool": "p"} if selector is None else selector
    return {"metadata": metadata, "spec": {"deviceSelector": selected, "taint": taint}}


def test_a_stolen_token_of_the_operator_reaches_no_rules_but_its_own(serving: Cluster) -> None:
    api, account = serving.api, "/api/v1/namespaces/berth-system/serviceaccounts"
    for file in ("rbac.yaml", "taints.yaml"):
        for document in yaml.safe_load_all((COMPONENT / file).read_text()):
            for variable in document.get("spec", {}).get("variables", ()):
                if variable["name"] == "added":
                    variable["expression"] = json.dumps({"devicetaintrules": [ADDED, PROTECTED]})
            api.apply(document)
    api.post(account, {"metadata": {"name": "berth-operator"}})
    token = api.post(f"{account}/berth-operator/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    stolen = Api(server=serving.server, token=token, ca=serving.ca_file.read_text())
    own, others = f"{RULES}/berth-of-before", f"{RULES}/of-an-administrator"
    api.post(RULES, rule("berth-of-before", ownerReferences=[]))
    api.post(RULES, rule("of-an-administrator", labels={}, ownerReferences=[]))

    def refusal(method: str, path: str = RULES, body: Any = None) -> str:
        try:
            stolen.request(method, path, body=body, query={"dryRun": "All"})
        except ApiError as error:
            return str(error) if error.status == HTTPStatus.FORBIDDEN else ""
        return ""

    evict = {"key": LABEL, "effect": "NoExecute"}
    waiting.until(lambda: POLICY in refusal("POST", body=rule(taint=evict)), what="the policy to be in force")
    attempts = {
        "evict all pods with claims": rule(selector={}, taint=evict),
        "select all devices": rule(selector={}),
        "select one pool of all drivers": rule(selector={"pool": "p"}),
        "evict": rule(taint=evict),
        "set another taint": rule(taint={"key": "stolen", "effect": "NoSchedule"}),
        "take another name": rule("stolen"),
        "leave out the label": rule(labels={}),
        "set another label": rule(labels={LABEL: "a", "app": "stolen"}),
        "stay when Berth is uninstalled": rule(ownerReferences=[]),
        "be kept from deletion": rule(finalizers=["example.com/stuck"]),
        "annotate": rule(annotations={"a": "b"}),
        "annotate as only Berth may": rule(annotations={PROTECTED: "b"}),
        "label as only Berth may": rule(labels={LABEL: "a", PROTECTED: "b"}),
    }
    assert [what for what, body in attempts.items() if POLICY not in refusal("POST", body=body)] == []
    assert "may delete only its own DeviceTaintRules" in refusal("DELETE", others)
    assert refusal("PUT", own, {**rule(selector={"driver": "e"}), "metadata": api.get(own)["metadata"]})
    for method, path, body in (
        ("POST", RULES, rule()),
        ("POST", RULES, rule(selector={"driver": "d"})),
        ("POST", RULES, rule(labels={LABEL: "a", ADDED: "b"}, annotations={ADDED: "b"})),
        ("DELETE", own, None),
    ):
        stolen.request(method, path, body=body, query={"dryRun": "All"})
    stolen.close()
