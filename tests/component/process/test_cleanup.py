"""The steps of a cleanup against an API server in memory: their order, failures, conflicts and bounds."""

import asyncio
import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from berth_api.names import MANAGED
from berth_client.errors import ApiError
from berth_operator.commands.cleanup import installed
from berth_operator.commands.cleanup.sequence import CONCURRENT, MAX_ERRORS, ROUNDS, Cleanup, CleanupError, Order
from berth_operator.state.watches.kueue import API
from tests.component.world import refusal
from tests.objects.kueue_objects import admission_check

pytestmark = pytest.mark.looptime

Raw = dict[str, Any]
GPU = "kubernetes.io/gpu"
PROGRAMS = "/api/v1/namespaces/berth-system/pods"
FENCE = "ValidatingAdmissionPolicy berth-fence-epoch"
SECONDS = 300.0


class Server:
    """The objects by path; each request takes a hundredth of a second."""

    def __init__(self, *raw: Raw) -> None:
        self.objects: dict[str, Raw] = {}
        self.log: list[str] = []
        self.refuses: dict[str, list[ApiError]] = {}
        """Path -> the answers to the next writes."""
        self.unreadable = ""
        """The path of a list that fails."""
        self.after: Callable[[str], object] = lambda _: None
        """Called with each write."""
        self.at_once = self.most_at_once = 0
        for one in raw:
            self.put(one)
        items = (*installed.callers(), *installed.programs("berth-system", "berth-agent-system"), *installed.policies())
        for item in (*items, *installed.written("berth-system"), *installed.definitions()):
            names = {"categories": ["berth"]} if item.name != installed.POD_GROUP else {}
            group = item.name.partition(".")[2]
            self.objects[item.path] = {"metadata": {"name": item.name}, "spec": {"group": group, "names": names}}

    def put(self, raw: Raw) -> None:
        metadata = raw["metadata"]
        namespace = metadata.get("namespace")
        collection = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/nodes"
        self.objects[f"{collection}/{metadata['name']}"] = raw

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None, decode: bool = True
    ) -> Any:
        assert (body is None) == decode == (method == "GET")
        await self._turn()
        if method == "DELETE":
            self._refuse(path)
            self._find(path)
            del self.objects[path]
            self.log.append(path)
            self.after(path)
            return None
        if path == self.unreadable:
            raise refusal(500, "the conversion webhook does not answer")
        return {"metadata": {"resourceVersion": "1"}, "items": copy.deepcopy(self._selected(path, params or {}))}

    async def get(self, path: str) -> Raw:
        await self._turn()
        return copy.deepcopy(self._find(path))

    async def merge_patch(self, path: str, body: Raw) -> Raw:
        await self._turn()
        self._refuse(path)
        raw = self._find(path.removesuffix("/status"))
        metadata = raw["metadata"]
        if body["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise refusal(409, "the object has been modified")
        _merge(raw, {key: value for key, value in body.items() if key == "status" or not path.endswith("/status")})
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        self.log.append(path)
        self.after(path)
        return copy.deepcopy(raw)

    async def _turn(self) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.01)
        self.at_once -= 1

    def _refuse(self, path: str) -> None:
        if self.refuses.get(path):
            raise self.refuses[path].pop(0)

    def _find(self, path: str) -> Raw:
        if path not in self.objects:
            raise refusal(404, "not found")
        return self.objects[path]

    def _selected(self, path: str, params: Mapping[str, str]) -> list[Raw]:
        if path == "/api/v1/pods":
            waiting = params["fieldSelector"].startswith("spec.nodeName=,")
            pods = [raw for each, raw in self.objects.items() if "/pods/" in each]
            return [raw for raw in pods if waiting is ("nodeName" not in raw["spec"])]
        return [raw for each, raw in self.objects.items() if each.startswith(f"{path}/")]


def _merge(into: Raw, patch: Raw) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def node(name: str = "a") -> Raw:
    sums: Raw = {"f:capacity": {f"f:{GPU}": {}}, "f:allocatable": {f"f:{GPU}": {}}}
    managed = [{"manager": "berth-operator", "fieldsV1": {"f:status": sums}}]
    metadata = {"name": name, "resourceVersion": "1", "labels": {MANAGED: "true"}, "managedFields": managed}
    return {"metadata": metadata, "status": {"capacity": {GPU: "800"}, "allocatable": {GPU: "800"}}}


def pod(name: str = "p", *, namespace: str = "ns", **spec: Any) -> Raw:
    containers = [{"name": "main", "resources": {"requests": {GPU: "50"}}}]
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}, "status": {"phase": "Running"}}


async def clean(server: Server, **order: Any) -> tuple[bool, list[str]]:
    """Return whether the pods have ended, and what was said."""
    said: list[str] = []
    defaults = {
        "namespace": "berth-system",
        "agent_namespace": "berth-agent-system",
        "node_selector": "",
        "drain": False,
        "seconds": SECONDS,
    }
    own = Order(**{**defaults, "delete_definitions": False, **order})
    return await Cleanup(api=server, order=own, say=said.append).run(), said


async def failure(server: Server, **order: Any) -> str:
    with pytest.raises(CleanupError) as error:
        await clean(server, **order)
    return str(error.value)


async def test_steps_are_taken_in_their_order() -> None:
    server = Server(node())
    await clean(server)
    kinds = [path.removeprefix("/apis/").split("/")[-2] for path in server.log]
    assert list(dict.fromkeys(kinds)) == [
        *("apiservices", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
        *("deployments", "daemonsets"),
        *("mutatingadmissionpolicybindings", "mutatingadmissionpolicies"),
        *("validatingadmissionpolicybindings", "validatingadmissionpolicies"),
        *("a", "nodes", "secrets", "endpointslices"),
    ]
    assert [path for path in server.log if "nodes/" in path] == ["/api/v1/nodes/a/status", "/api/v1/nodes/a"]


async def test_a_second_cleanup_finds_nothing_to_do() -> None:
    server = Server(node())
    await clean(server)
    server.log.clear()
    await clean(server)
    assert server.log == []


async def test_nothing_is_removed_while_a_program_runs() -> None:
    server = Server(node(), pod("berth-operator-x", namespace="berth-system", nodeName="a"))
    problem = await failure(server)
    assert problem.startswith("pods of Berth still run after 300 s: berth-operator-x (node a); does another program")
    assert not [path for path in server.log if "polic" in path or "nodes" in path]


async def test_a_refused_deletion_ends_the_cleanup_with_a_line_for_each() -> None:
    server = Server(node())
    for item in installed.policies():
        if item.name == "berth-fence-epoch":
            server.refuses[item.path] = [refusal(403, f"may not delete {item}")]
    problem = await failure(server)
    assert [line.partition(":")[0] for line in problem.splitlines()] == [
        "ValidatingAdmissionPolicyBinding berth-fence-epoch was not deleted",
        f"{FENCE} was not deleted",
    ]
    assert f"may not delete {FENCE}" in problem
    assert "/api/v1/nodes/a" not in server.log


async def test_a_node_that_changes_meanwhile_is_planned_again() -> None:
    server = Server(node())
    server.refuses["/api/v1/nodes/a/status"] = [refusal(409, "the object has been modified")]
    await clean(server)
    assert server.objects["/api/v1/nodes/a"]["status"] == {"capacity": {}, "allocatable": {}}
    assert server.objects["/api/v1/nodes/a"]["metadata"]["labels"] == {}


async def test_a_node_that_goes_meanwhile_needs_nothing() -> None:
    server = Server(node("a"), node("b"))
    server.after = lambda path: server.objects.pop("/api/v1/nodes/b", None) if "nodes/a" in path else None
    ended, _ = await clean(server)
    assert ended


async def test_refused_nodes_are_named_and_the_others_are_cleaned() -> None:
    server = Server(*(node(f"n{number:02}") for number in range(20)))
    for number in range(MAX_ERRORS + 3):
        server.refuses[f"/api/v1/nodes/n{number:02}/status"] = [refusal(403, "no")]
    lines = (await failure(server)).splitlines()
    assert len(lines) == MAX_ERRORS + 1
    assert lines[0].startswith("node n00: 403")
    assert lines[-1] == "and 3 more nodes"
    assert server.objects["/api/v1/nodes/n19"]["status"]["capacity"] == {}


async def test_a_program_that_writes_again_is_reported() -> None:
    server = Server(node())

    def write_again(path: str) -> None:
        if path == "/api/v1/nodes/a":
            server.objects[path]["metadata"]["labels"][MANAGED] = "true"

    server.after = write_again
    problem = await failure(server)
    assert problem == (
        f"after {ROUNDS} attempts there is something to remove again on a; is another operator or agent running?"
    )


async def test_a_node_with_a_pod_keeps_its_capacity_and_is_listed() -> None:
    server = Server(node("a"), node("b"), pod(nodeName="a"), pod("waits", schedulerName="berth-scheduler"))
    ended, said = await clean(server)
    assert ended
    assert server.objects["/api/v1/nodes/a"]["status"] == {"capacity": {GPU: "50"}, "allocatable": {GPU: "50"}}
    assert server.objects["/api/v1/nodes/b"]["status"] == {"capacity": {}, "allocatable": {}}
    assert f"node a keeps {GPU}: 50 for pods ns/p" in said
    assert [line for line in said if "1 pod(s) that wait for berth-scheduler" in line]


async def test_drain_waits_until_the_pods_have_ended() -> None:
    server = Server(node(), pod(nodeName="a"))
    path = "/api/v1/namespaces/ns/pods/p"
    asyncio.get_running_loop().call_later(100, lambda: server.objects[path]["status"].update(phase="Succeeded"))
    ended, said = await clean(server, drain=True)
    assert 100 < asyncio.get_running_loop().time() < 110
    assert (ended, server.objects["/api/v1/nodes/a"]["status"]["capacity"]) == (True, {})
    assert not [line for line in said if "keeps" in line]


async def test_drain_waits_for_no_pod_that_came_in_the_place_of_another() -> None:
    """A StatefulSet creates it again under its name, without Berth's capacity."""
    server = Server(node(), pod(nodeName="a"))
    successor = pod(nodeName="a")
    successor["metadata"]["uid"] = "another"
    asyncio.get_running_loop().call_later(100, server.put, successor)
    ended, said = await clean(server, drain=True)
    assert 100 < asyncio.get_running_loop().time() < 110
    assert not ended
    assert f"node a keeps {GPU}: 50 for pods ns/p" in said


async def test_drain_ends_in_time_and_names_the_pods_that_remain() -> None:
    server = Server(node("a"), node("b"), pod("p", nodeName="a"), pod("q", nodeName="b"))
    asyncio.get_running_loop().call_later(100, lambda: server.objects.pop("/api/v1/namespaces/ns/pods/q"))
    ended, said = await clean(server, drain=True)
    assert not ended
    assert SECONDS < asyncio.get_running_loop().time() < SECONDS + 10
    assert [line for line in said if "keeps" in line] == [f"node a keeps {GPU}: 50 for pods ns/p"]
    assert server.objects["/api/v1/nodes/b"]["status"]["capacity"] == {}


async def test_definitions_go_only_on_request_and_a_foreign_one_never() -> None:
    server = Server()
    await clean(server)
    definitions = [item.path for item in installed.definitions()]
    assert all(path in server.objects for path in definitions)
    _, said = await clean(server, delete_definitions=True)
    assert [path for path in definitions if path in server.objects] == [
        f"{installed.DEFINITIONS}/{installed.POD_GROUP}"
    ]
    assert not [line for line in said if "kubectl delete crd devices" in line]


async def test_queues_of_kueue_that_wait_for_berth_are_named() -> None:
    server = Server()
    server.objects[API] = {}
    server.objects[f"{API}/admissionchecks/fits"] = admission_check("fits")
    strategy = {"admissionChecks": [{"name": "fits"}]}
    server.objects[f"{API}/clusterqueues/a"] = {
        "metadata": {"name": "a"},
        "spec": {"admissionChecksStrategy": strategy},
    }
    _, said = await clean(server)
    assert [line for line in said if line.startswith("stays: AdmissionCheck fits, ") and "ClusterQueues a " in line]


async def test_a_kueue_that_cannot_be_read_is_no_reason_to_fail() -> None:
    server = Server()
    server.objects[API] = {}
    server.unreadable = f"{API}/clusterqueues"
    ended, said = await clean(server)
    assert ended
    assert [line for line in said if f"may wait for Berth, but {API}/clusterqueues cannot be read: 500" in line]


async def test_a_thousand_nodes_take_few_requests_at_a_time() -> None:
    server = Server(*(node(f"n{number}") for number in range(1000)))
    await clean(server)
    assert all(raw["status"]["capacity"] == {} for path, raw in server.objects.items() if "/nodes/" in path)
    assert server.most_at_once <= CONCURRENT
