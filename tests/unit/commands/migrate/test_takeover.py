"""A live cluster with another system: what is found there, and how its nodes are moved."""

import io
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import pytest
import yaml

from berth_api.words import TABLE
from berth_operator.commands.migrate import live, running, takeover
from berth_operator.commands.migrate.live import ListedKind, Lists, UnreadList
from berth_operator.commands.migrate.workloads import Goal

Raw = dict[str, Any]
IMAGES: Final = {system.name: system.images[0] for system in TABLE.systems if system.images}


def program(name: str, image: str, namespace: str = "kube-system") -> Raw:
    spec = {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def pod(
    name: str, node: str = "", *, limits: Raw, scheduler: str = "", phase: str = "Running", owned: bool = False
) -> Raw:
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    spec = {"containers": [container], **({"nodeName": node} if node else {})}
    owners = {"ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": True}]} if owned else {}
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": name, **owners},
        "spec": {**spec, **({"schedulerName": scheduler} if scheduler else {})},
        "status": {"phase": phase},
    }


def node(name: str, **allocatable: str) -> Raw:
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "8", **allocatable}}}


def listed(**objects: Sequence[Raw] | UnreadList) -> live.Get:
    def get(paths: Sequence[str]) -> list[Any]:
        answers: list[Any] = []
        for path in paths:
            answer = objects.get(path.rpartition("/")[2], ())
            if "podgroups" in path and not isinstance(answer, UnreadList):
                answer = UnreadList(why="not found", missing=True)
            answers.append(answer if isinstance(answer, UnreadList) else {"items": list(answer)})
        return answers

    return get


def cluster(**objects: Sequence[Raw] | UnreadList) -> Lists:
    return live.read(listed(**objects), live.TAKEOVER)


HELD: Final = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
CLUSTER: Final = cluster(
    nodes=[node("a", **{"nvidia.com/gpu": "40"}), node("b", **{"nvidia.com/gpu": "8"}), node("cpu")],
    daemonsets=[program("plugin", f"docker.io/{IMAGES['HAMi']}hami:v2"), program("proxy", "kube-proxy:1")],
    deployments=[program("scheduler", f"{IMAGES['HAMi']}hami:v2")],
    mutatingwebhookconfigurations=[
        {"metadata": {"name": "of-hami"}, "webhooks": [{"clientConfig": {"service": {"namespace": "kube-system"}}}]},
        {"metadata": {"name": "other"}, "webhooks": [{"clientConfig": {"url": "https://other"}}]},
    ],
    pods=[
        pod("one", "a", owned=True, limits=HELD),
        pod("two", "a", scheduler="hami-scheduler", limits=HELD),
        pod("ended", "b", phase="Succeeded", limits=HELD),
        pod("ours", "a", scheduler="berth-scheduler", limits={"kubernetes.io/gpu": "100"}),
        pod("waits", phase="Pending", limits=HELD),
    ],
)


def test_what_runs_is_found() -> None:
    [found] = takeover.plan(CLUSTER).found
    assert (found.system, found.webhooks, found.pods) == ("HAMi", ("of-hami",), 3)
    assert [program.title for program in found.programs] == [
        "DaemonSet kube-system/plugin",
        "Deployment kube-system/scheduler",
    ]


def test_a_node_has_its_first_resources_and_one_pod_is_one() -> None:
    offered = {f"nvidia.com/mig-{count}g": "1" for count in range(1, 9)}
    lines = list(takeover.lines(takeover.plan(cluster(nodes=[node("a", **offered)], pods=[pod("one", limits=HELD)]))))
    assert lines[1] == "  HAMi: 1 pod"
    first = ", ".join(f"nvidia.com/mig-{count}g: 1" for count in range(1, 6))
    assert [line for line in lines if "mig-1g" in line] == [f"  a ({first} and 3 more): no pods"]


def test_the_cards_of_each_node_have_their_holders_and_empty_nodes_come_first() -> None:
    empty, shared = takeover.plan(CLUSTER).nodes
    assert (empty.node, empty.holders, empty.offered) == ("b", {}, {"nvidia.com/gpu": "8"})
    assert (shared.node, shared.is_shared) == ("a", True)
    assert shared.holders == {"Berth": ("ml/ours",), "HAMi": ("ml/one", "ml/two")}


def test_only_nodes_with_pods_whose_cards_are_not_known_are_drained() -> None:
    steps = takeover.plan(CLUSTER).each_node
    drained = {name for name, of_node in steps.items() if any("drain" in str(step.commands) for step in of_node)}
    assert drained == {"a"}
    koordinator = pod("k", "a", scheduler="koord-scheduler", limits={"koordinator.sh/gpu": "100"})
    [steps_of_a] = takeover.plan(cluster(nodes=[node("a")], pods=[koordinator])).each_node.values()
    assert not any("drain" in command for step in steps_of_a for command in step.commands)


def test_device_plugins_are_kept_off_by_a_patch_that_can_be_undone() -> None:
    planned = takeover.plan(CLUSTER)
    [patch] = [command for step in planned.before for command in step.commands if "patch" in command]
    assert patch.startswith("kubectl patch daemonset -n kube-system plugin --type merge -p '{")
    assert [command for step in planned.back for command in step.commands][-1] == (
        "kubectl rollout undo -n kube-system daemonset/plugin"
    )


def test_a_device_plugin_with_two_images_is_patched_and_undone_once() -> None:
    plugin = program("plugin", f"{IMAGES['HAMi']}hami:v2")
    containers = plugin["spec"]["template"]["spec"]["containers"]
    containers.append({"name": "monitor", "image": f"{IMAGES['HAMi']}monitor:v2"})
    planned = takeover.plan(cluster(daemonsets=[plugin]))
    for steps in (planned.before, planned.back):
        assert sum(" daemonset" in command for step in steps for command in step.commands) == 1


def test_what_may_not_be_read_is_named() -> None:
    lists = cluster(nodes=UnreadList(why="nodes is forbidden"), pods=[])
    out = io.StringIO()
    assert running.of_cluster(lists, running.Streams(form="", quiet=False, out=out, err=out)) == 2
    assert out.getvalue().splitlines()[-1] == "not read: nodes: nodes is forbidden"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_plan_is_for_programs_too(form: str) -> None:
    out = io.StringIO()
    assert running.of_cluster(CLUSTER, running.Streams(form=form, quiet=False, out=out, err=out)) == 0
    read = yaml.safe_load(out.getvalue())
    assert read == json.loads(json.dumps(takeover.report(takeover.plan(CLUSTER))))
    assert [node["name"] for node in read["nodes"]] == ["b", "a"]


# --- workloads of the live cluster ------------------------------------------------------------------------------


def test_workloads_of_the_live_cluster_are_those_that_nothing_else_creates() -> None:
    get = listed(pods=[pod("owned", owned=True, limits=HELD), pod("own", limits=HELD)])
    out = io.StringIO()
    to = running.Streams(form="", quiet=False, out=out, err=out)
    assert running.of_lists(partial(live.read, get, namespace="ml"), Goal(), to) == 0
    assert out.getvalue().splitlines()[0] == "the cluster: Pod ml/own: rewritten: 1 card of 3000 MiB"


def test_manifests_of_the_live_cluster_can_be_applied_elsewhere() -> None:
    out = io.StringIO()
    read = partial(live.read, listed(pods=[pod("own", limits=HELD)]))
    assert running.of_lists(read, Goal(), running.Streams(form="yaml", quiet=True, out=out, err=out)) == 0
    manifest = yaml.safe_load(out.getvalue())
    assert manifest["metadata"] == {"namespace": "ml", "name": "own"}
    assert "status" not in manifest
    assert manifest["spec"]["schedulerName"] == "berth-scheduler"


REFUSED: Final = (
    "impossible: spec.priorityClassName: high; the cluster has no PriorityClass of this name, so its API server "
    "refuses the pods, whichever scheduler they name: create it, or name another"
)


@pytest.mark.parametrize(
    ("classes", "line", "status"),
    [
        (
            [{"metadata": {"name": "other"}}],
            REFUSED,
            1,
        ),
        ([{"metadata": {"name": "high"}}], "rewritten: 1 card of 3000 MiB", 0),
        (UnreadList(why="forbidden"), "rewritten: 1 card of 3000 MiB", 2),
    ],
)
def test_a_priority_class_that_the_cluster_has_not_is_named(classes: Any, line: str, status: int) -> None:
    own, out = pod("own", limits=HELD), io.StringIO()
    own["spec"]["priorityClassName"] = "high"
    to = running.Streams(form="", quiet=False, out=out, err=out)
    assert running.of_lists(partial(live.read, listed(pods=[own], priorityclasses=classes)), Goal(), to) == status
    assert out.getvalue().splitlines()[0] == f"the cluster: Pod ml/own: {line}"


def test_lists_of_one_namespace_are_asked_for_there() -> None:
    kinds = [
        ListedKind(plural="pods", name="Pod"),
        ListedKind(group="g", version="v2", plural="nodes", name="N", namespaced=False),
    ]
    assert [kind.path("ml") for kind in kinds] == ["/api/v1/namespaces/ml/pods", "/apis/g/v2/nodes"]
