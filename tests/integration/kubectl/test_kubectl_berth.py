"""Each command of `kubectl berth` on a real API server: its table, its JSON, and its error for a user without rights.

The test has its own cluster, because the doctor looks at all of it. The visibility API is a stand-in.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api import words
from berth_kubectl.doctor.checks import CHECKS
from berth_kubectl.transport import kubectl, proxy
from devcluster import Cluster, waiting
from devcluster.additions import agents, installation
from devcluster.building import programs
from tests.objects.kubectl_objects import card, fleet_node, holder, part
from tests.programs.dashboard import Client
from tests.stand_ins import visibility
from tests.stand_ins.visibility import StandIn

FLEET = {
    "nodes": [
        {"names": "node-0", "profile": "a100", "gpus": 2},
        {"names": "node-1", "profile": "a100", "gpus": 2},
        {"names": "node-2", "profile": "t4", "gpus": 1},
    ]
}
NODES = ("node-0", "node-1", "node-2")
PODS = {"half": "50", "two": "200", "waits": "800"}
"""Name -> hundredths of GPUs."""
VOLATILE = re.compile(r"\b\d+[smhd]\b|GPU-[0-9a-f-]+|20\d\d-\d\d-\d\dT[\d:.]+Z")
"""Ages, ids and times."""


class Desk:
    """A cluster with Berth, and the command as users run it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder, self.api = cluster, folder, cluster.api
        self.operator = self.agent = 0

    def install(self) -> None:
        """Apply what is shipped, and start the programs."""
        installation.apply(self.cluster)
        self.cluster.play_device_plugins()
        self.cluster.create_nodes(NODES)
        fleet = self.folder / "fleet.yaml"
        fleet.write_text(yaml.safe_dump(FLEET))
        options = [f"--fleet={fleet}", *agents.options(self.cluster, NODES)]
        self.agent = self.cluster.run("agent", [sys.executable, "-m", "berth_agent", *options])
        # The commands show what they know without the visibility API.
        self.operator = installation.start(self.cluster, "--visibility-port=0")
        installation.wait(self.cluster, self.operator, nodes=NODES, is_visible=False)
        self.cluster.kubectl("create", "namespace", "team")
        self.wait(lambda: self.api.exists("/api/v1/namespaces/team/serviceaccounts/default"))

    def wait(self, predicate: Any) -> Any:
        return waiting.until(predicate, what="a condition", poll=0.05)

    def pod(self, name: str) -> Any:
        return self.api.get(f"/api/v1/namespaces/team/pods/{name}")

    def create(self, name: str, gpu: str = "800") -> None:
        container = {"name": "main", "image": "none", "resources": {"limits": {"kubernetes.io/gpu": gpu}}}
        pod = {"metadata": {"name": name}, "spec": {"schedulerName": "berth-scheduler", "containers": [container]}}
        self.api.post("/api/v1/namespaces/team/pods", pod)

    def command(self, line: str) -> list[str]:
        return [sys.executable, "-m", "berth_kubectl", *line.split(), f"--kubeconfig={self.cluster.kubeconfig}"]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "BERTH_KUBECTL": str(programs.ensure(["kubectl"])["kubectl"])}

    def run(self, line: str) -> tuple[int, str, str]:
        """Return status, standard output and standard error, without what differs from run to run."""
        ended = subprocess.run(
            self.command(line), capture_output=True, text=True, check=False, timeout=120, env=self.environment
        )
        return ended.returncode, *(VOLATILE.sub("~", text) for text in (ended.stdout, ended.stderr))  # type: ignore[return-value]

    def json(self, line: str) -> Any:
        status, out, err = self.run(f"{line} -o json")
        assert status in (0, 1), err
        return json.loads(out)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("kubectl")
    with Cluster(folder=folder / "cluster") as own_cluster:
        own = Desk(own_cluster, folder)
        own.install()
        for name, gpu in PODS.items():
            own.create(name, gpu)
            own.wait(lambda name=name: own.pod(name).get("status", {}).get("conditions"))
        own.wait(lambda: own.pod("two")["spec"].get("nodeName"))
        own.wait(lambda: sum(float(each["status"]["allocated"]) for each in own.api.get(DEVICES)["items"]) == 2.5)
        yield own


DEVICES = "/apis/berth.dev/v1alpha1/devices"
TABLES = {
    "free": """
TYPE   MODEL                  KIND    TOTAL   FREE   LARGEST   NODES   NOTE
gpu    NVIDIA-A100-SXM4-80GB  share   -       0.5    0.5       1       -
gpu    NVIDIA-A100-SXM4-80GB  whole   4       1      1         1       -
gpu    Tesla-T4               whole   1       1      1         1       -
""",
    "who -n team": """
NAMESPACE   NAME   NODE     CARDS   DEVICES   OWNER   AGE
team        half   node-0   0.5     gpu:0     -       ~
team        two    node-1   2       gpu:0,1   -       ~
""",
    "queue -n team -q": """
POSITION   NAMESPACE   NAME    STATE   PRIORITY   WAITING   GANG   REQUESTS
-          team        waits   -       0          ~         -      gpu=800
""",
}
"""Command -> its table, where the visibility API is not served. Runs of spaces are compared as one."""


def cut(text: str) -> list[list[str]]:
    """Return the cells of a table, as a script cuts them."""
    return [line.split() for line in text.strip().splitlines()]


@pytest.mark.parametrize("line", TABLES)
def test_tables(desk: Desk, line: str) -> None:
    status, out, err = desk.run(line)
    assert (status, err) == (0, "")
    assert cut(out) == cut(TABLES[line])


def test_json_has_the_form_of_the_visibility_api(desk: Desk) -> None:
    fleet = desk.json("devices")
    assert (fleet["kind"], [node["metadata"]["name"] for node in fleet["items"]]) == ("FleetNodeList", [*NODES])
    held = desk.json("who -n team")
    amounts = {"gpu-core": 50, "gpu-memory": 40 * 2**30, "gpu-memory-ratio": 50}
    assert held["items"][0]["devices"][0]["amounts"] == amounts
    assert [pod["metadata"]["name"] for pod in desk.json("queue -A")["items"]] == ["waits"]
    assert desk.json("free")["items"][1]["largest"] == {"amount": 1, "node": "node-0"}
    desk.wait(lambda: desk.json("explain waits -n team")["events"])
    explained = desk.json("explain waits -n team")
    assert (explained["state"], explained["events"][0]["reason"]) == ("Waiting", "FailedScheduling")


def test_explain_shows_the_condition_and_what_is_missing(desk: Desk) -> None:
    status, out, err = desk.run("explain waits -n team")
    assert (status, out.splitlines()[:2]) == (0, ["Pod:         team/waits", "State:       Waiting"])
    condition = next(each for each in desk.pod("waits")["status"]["conditions"] if each["type"] == "PodScheduled")
    assert f"Message:     {condition['message']}" in out
    assert "which is not served" in err


def test_simulation_and_advice_are_the_operators(desk: Desk) -> None:
    workload = desk.folder / "workload.yaml"
    container = {"name": "main", "resources": {"limits": {"kubernetes.io/gpu": 100}}}
    workload.write_text(
        yaml.safe_dump({"kind": "Pod", "metadata": {"name": "more"}, "spec": {"containers": [container]}})
    )
    report = desk.json(f"simulate -f {workload} -n team")
    assert (report["fits"], report["pods"][0]["pod"], [each["pod"] for each in report["waiting"]]) == (
        True,
        "team/more",
        ["team/waits"],
    )
    status, out, err = desk.run("advise waits -n team")
    assert (status, out.startswith("team/waits fits nowhere: 0/3 nodes are available")) == (1, True)
    unknown = "the operator's settings are not known: the visibility API is not served; assumed are a default profile"
    assert err.startswith(unknown)
    for missing in ("none -n team", "team/none"):
        message = "error: there is no pod team/none, or it has ended\n"
        assert desk.run(f"advise {missing} -q") == (2, "", message)


def test_explain_quotes_why_a_workload_has_no_pods(desk: Desk) -> None:
    container = {"name": "main", "image": "none", "resources": {"limits": {"kubernetes.io/gpu": "150"}}}
    spec = {"schedulerName": "berth-scheduler", "containers": [container]}
    labels = {"matchLabels": {"app": "refused"}}
    template = {"metadata": {"labels": {"app": "refused"}}, "spec": spec}
    deployments, jobs = "/apis/apps/v1/namespaces/team/deployments", "/apis/batch/v1/namespaces/team/jobs"
    metadata = {"name": "refused"}
    desk.api.post(deployments, {"metadata": metadata, "spec": {"selector": labels, "template": template}})
    job = {"suspend": True, "template": {"spec": {**spec, "restartPolicy": "Never"}}}
    desk.api.post(jobs, {"metadata": metadata, "spec": job})

    def reports(path: str, kind: str) -> bool:
        conditions = desk.api.get(f"{path}/refused").get("status", {}).get("conditions", ())
        return any(each["type"] == kind for each in conditions)

    desk.wait(lambda: reports(deployments, "ReplicaFailure") and reports(jobs, "Suspended"))
    status, out, err = desk.run("explain deployment/refused -n team")
    lines = out.splitlines()
    assert (status, err, lines[:2]) == (0, "", ["Deployment:  team/refused", "State:       NoPods"])
    assert re.match(r"Message: {5}ReplicaSet refused-\w+: ReplicaFailure \(FailedCreate\): pods .*gpu: 150", lines[2])
    assert "Events:" in lines
    out = desk.run("explain job/refused -n team")[1]
    assert "Message:     Job refused: Suspended (JobSuspended): Job suspended" in out
    for path in (deployments, jobs):
        desk.api.delete(f"{path}/refused")


NOT_ALLOWED = {
    "devices": 'list "devices.berth.dev" in the whole cluster; the ClusterRole berth-devices-view has it',
    "queue -A": 'list "pods" in the whole cluster; the ClusterRole view has it',
    "explain waits -n team": 'get "pods" in the namespace team; the ClusterRole view has it',
    "advise waits -n team": "it lists all that scheduling reads",
    "doctor": "nothing could be checked",
}


@pytest.mark.parametrize("line", NOT_ALLOWED)
def test_a_missing_right_is_one_line_that_names_it(desk: Desk, line: str) -> None:
    status, out, err = desk.run(f"{line} --as=stranger")
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: ")
    assert NOT_ALLOWED[line] in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("explain nothing -n team", 'pods "nothing" not found'),
        ("top", "live metrics come from the visibility API (visibility.berth.dev), which is not served"),
        ("free --server=https://127.0.0.1:1", "connection refused"),
    ],
)
def test_errors_are_one_line(desk: Desk, line: str, message: str) -> None:
    status, out, err = desk.run(line)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert message in err


def test_a_watch_prints_what_changes(desk: Desk) -> None:
    printed = desk.folder / "watched"
    with (
        printed.open("w") as out,
        subprocess.Popen(desk.command("queue -n team -w -o name -q"), stdout=out, env=desk.environment) as process,
    ):
        desk.wait(lambda: printed.read_text() == "pod/waits\n")
        desk.create("more")
        desk.wait(lambda: printed.read_text() == "pod/waits\npod/more\n")
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    desk.cluster.kubectl("delete", "pod", "-n", "team", "more", "--grace-period=0", "--force")


def test_the_proxy_is_private_and_takes_no_writes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kubectl.VARIABLE, desk.environment[kubectl.VARIABLE])
    with proxy.opened(kubectl.find([f"--kubeconfig={desk.cluster.kubeconfig}"])) as running:
        path = Path(running.socket)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        for method, status in (("GET", 200), ("POST", 403), ("DELETE", 403), ("PATCH", 403), ("PUT", 403)):
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
                connection.connect(running.socket)
                request = f"{method} /api/v1/namespaces/team HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
                connection.sendall(request.encode())
                assert connection.recv(64).split()[1] == str(status).encode(), method
    assert not path.parent.exists()


# --- with the visibility API ------------------------------------------------------------------------------------


def served() -> dict[str, Any]:
    """Return what the stand-in answers."""
    metrics = {"utilization": 0, "memoryUsed": 20 * 2**30, "power": 60}
    position = {"position": 2, "of": 7, "state": "active", "backoffSeconds": 0.0, "wakesOn": []}
    explanation = {
        "metadata": {"name": "waits", "namespace": "team", "uid": "1"},
        "state": "Active",
        "message": "0/1 nodes are available: 1 Insufficient cpu.",
        "queue": position,
    }
    queued = {
        "metadata": {"name": "waits", "namespace": "team", "uid": "1"},
        "scheduler": "berth-scheduler",
        "priority": 0,
        "waitingSeconds": 5,
        "requests": {"gpu": 800},
        "message": "",
        "reservedNode": "",
        **position,
    }
    lists = {
        "fleet": [fleet_node("seen", card(0, used=100, metrics=metrics))],
        "namespaces/team/queue": [queued],
        "namespaces/team/holders": [holder("held", part(0), node="seen")],
        "holders": [holder("held", part(0), node="seen")],
    }
    answers = {path: {"metadata": {"resourceVersion": "1"}, "items": items} for path, items in lists.items()}
    return {**answers, "namespaces/team/pods/waits/explanation": explanation}


VISIBLE = {
    "queue -n team --no-headers": [["2", "team", "waits", "Active", "0", "~", "-", "gpu=800"]],
    "top --no-headers": [["seen", "1", "1", "1", "0%", "20Gi/80Gi", "60W"]],
    "top --by pod -A --idle --no-headers": [["team", "held", "seen", "1", "0%", "20Gi/80Gi", "60W", "gpu:0"]],
}


def test_the_visibility_api_is_used_where_it_is_served(desk: Desk, tmp_path: Path) -> None:
    with StandIn(tmp_path, served()) as server:
        server.register(desk.api)
        try:
            for line, expected in VISIBLE.items():
                status, out, err = desk.run(line)
                assert (status, err) == (0, ""), line
                assert [row[: len(expected[0])] for row in cut(out)] == expected, line
            _, out, err = desk.run("explain waits -n team")
            assert "State:       Active (position 2 of 7 in the queue)" in out
            assert err == ""
        finally:
            visibility.unregister(desk.api)


# --- the dashboard ----------------------------------------------------------------------------------------------


def few_rights(desk: Desk, user: str) -> None:
    """Grant a user what the role `view` has of the visibility API, in one namespace."""
    resources = ["queue", "holders", "pods/explanation"]
    rules = [{"apiGroups": [visibility.GROUP], "resources": resources, "verbs": ["get", "list", "watch"]}]
    role = {"kind": "Role", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    base = "/apis/rbac.authorization.k8s.io/v1/namespaces/team"
    desk.api.post(f"{base}/roles", {"metadata": {"name": user}, "rules": rules})
    desk.api.post(f"{base}/rolebindings", {"metadata": {"name": user}, "roleRef": role, "subjects": [subject]})


@contextlib.contextmanager
def dashboard(desk: Desk, flags: str) -> Iterator[Client]:
    """Run the dashboard, and yield a browser that opened its address."""
    command = desk.command(f"dashboard --no-browser {flags}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=desk.environment) as process:
        assert process.stdout is not None
        port, _, token = process.stdout.readline().strip().removeprefix("http://127.0.0.1:").partition("/?token=")
        try:
            with contextlib.closing(Client(port=int(port))) as client:
                yield client.log_in(token)
        finally:
            process.terminate()
    assert process.returncode == 0


REFUSED = 'User "jane" cannot list resource "{}" in API group "visibility.berth.dev" at the cluster scope'
READ_BY_JANE: dict[str, tuple[int, Any]] = {
    "fleet": (403, f"fleet.visibility.berth.dev is forbidden: {REFUSED.format('fleet')}"),
    "queue": (403, f"queue.visibility.berth.dev is forbidden: {REFUSED.format('queue')}"),
    "holders": (403, f"holders.visibility.berth.dev is forbidden: {REFUSED.format('holders')}"),
    "namespaces/team/queue": (200, ["waits"]),
    "namespaces/team/holders": (200, ["held"]),
    "namespaces/team/pods/waits/explanation": (200, "0/1 nodes are available: 1 Insufficient cpu."),
}
"""Path of the visibility API -> status, and the message or the names of rows."""


def test_the_dashboard_shows_what_its_user_may_read(desk: Desk, tmp_path: Path) -> None:
    few_rights(desk, "jane")
    with StandIn(tmp_path, served()) as server, dashboard(desk, "--as=jane -n team") as client:
        assert client.json(f"{visibility.BASE}/namespaces/team/queue")[0] == 404
        server.register(desk.api)
        try:
            read = {path: client.json(f"{visibility.BASE}/{path}") for path in READ_BY_JANE}
        finally:
            visibility.unregister(desk.api)
        assert {
            path: (status, body.get("message") or [row["metadata"]["name"] for row in body["items"]])
            for path, (status, body) in read.items()
        } == READ_BY_JANE
        assert client.json("/api/context")[1]["namespace"] == "team"
        status, diagnosis = client.json("/api/doctor")
        assert (status, diagnosis["findings"], diagnosis["checked"], len(diagnosis["notChecked"])) == (
            200,
            [],
            [],
            len(CHECKS),
        )
        assert 'User "jane" cannot list resource' in diagnosis["notChecked"][0]["reason"]


# --- a cluster of another system --------------------------------------------------------------------------------

PLUGIN = {
    "metadata": {"name": "plugin"},
    "spec": {
        "selector": {"matchLabels": {"app": "plugin"}},
        "template": {
            "metadata": {"labels": {"app": "plugin"}},
            "spec": {
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "image": f"docker.io/{words.TABLE.systems[0].images[0]}plugin:1"}],
            },
        },
    },
}
SHARES = {
    "metadata": {"name": "shares"},
    "spec": {
        "selector": {"matchLabels": {"app": "shares"}},
        "template": {
            "metadata": {"labels": {"app": "shares"}},
            "spec": {
                "nodeName": "node-2",
                "schedulerName": words.TABLE.systems[0].schedulers[0],
                "containers": [
                    {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpumem": "1000"}}},
                ],
            },
        },
    },
}


def _on(desk: Desk, app: str) -> set[str]:
    pods = desk.api.get("/api/v1/namespaces/team/pods", labelSelector=f"app={app}")["items"]
    return {pod["spec"].get("nodeName") or "" for pod in pods if not pod["metadata"].get("deletionTimestamp")}


def _type(desk: Desk, steps: list[Any], node: str) -> None:
    """Run the commands of a plan but those of this program and that into a file."""
    for command in (command for step in steps for command in step["commands"]):
        if not command.startswith("kubectl berth") and ">" not in command:
            desk.cluster.kubectl(*shlex.split(command.replace("NODE", node))[1:])


def test_a_node_of_another_system_is_moved_and_given_back_as_the_plan_says(desk: Desk) -> None:
    desk.api.post("/apis/apps/v1/namespaces/team/daemonsets", PLUGIN)
    desk.api.post("/apis/apps/v1/namespaces/team/deployments", SHARES)
    desk.wait(lambda: _on(desk, "plugin") == set(NODES) and _on(desk, "shares") == {"node-2"})
    name = words.TABLE.systems[0].name
    status, out, _ = desk.run("migrate --cluster=")
    assert status == 0
    assert f"  {name}: 1 pod\n" in out
    assert "    DaemonSet team/plugin (docker.io/" in out
    plan = desk.json("migrate --cluster=")
    [node] = [each for each in plan["nodes"] if each["name"] == "node-2"]
    assert [pod.startswith("team/shares-") for pod in node["holders"][name]] == [True]
    [pod] = node["holders"][name]
    _type(desk, plan["before"], "")
    _type(desk, node["steps"], "node-2")
    desk.wait(lambda: _on(desk, "plugin") == set(NODES) - {"node-2"})
    assert not desk.api.exists(f"/api/v1/namespaces/team/pods/{pod.partition('/')[2]}")
    desk.api.delete("/apis/apps/v1/namespaces/team/deployments/shares", propagationPolicy="Foreground")
    _type(desk, plan["back"], "node-2")
    desk.wait(lambda: _on(desk, "plugin") == set(NODES))
    moved = desk.api.get("/api/v1/nodes/node-2")
    assert "scheduler" not in moved["metadata"]["labels"]
    assert all(taint["key"] != "scheduler" for taint in moved["spec"].get("taints") or ())
    desk.api.delete("/apis/apps/v1/namespaces/team/daemonsets/plugin")
    desk.wait(lambda: _on(desk, "plugin") | _on(desk, "shares") == set())


def test_workloads_of_the_live_cluster_are_answered_with_the_users_rights(desk: Desk) -> None:
    status, out, err = desk.run("migrate -n team")
    assert (status, err) == (0, "")
    assert "the cluster: Pod team/half: unchanged: 1 card of 50 % of the memory and 50 % of the cores" in out
    status, out, err = desk.run("migrate -n team --as=john")
    assert status == 2
    assert 'not readable: pods is forbidden: User "john" cannot list resource "pods"' in err


# --- the doctor, at last: it breaks the cluster -----------------------------------------------------------------


def test_a_healthy_cluster_has_no_finding(desk: Desk) -> None:
    status, out, err = desk.run("doctor")
    assert (status, out, err) == (0, f"0 findings; {len(CHECKS)} checks made\n", "")


def test_every_finding(desk: Desk) -> None:
    _break(desk)
    desk.wait(lambda: _plugin_runs(desk))
    diagnosis = desk.json("doctor")
    found = {(each["check"], each["object"]) for each in diagnosis["findings"]}
    assert found == {
        ("NoLeader", "leaderlease/berth-operator"),
        ("SilentAgent", "node/node-0"),
        ("NoAgent", "node/bare"),
        ("OldDefinitions", "crd/devices.berth.dev"),
        ("MissingPolicy", "validatingadmissionpolicy/berth-fence-epoch"),
        ("UnreachableWebhook", "mutatingwebhookconfiguration/berth-injection"),
        ("UnreachableApi", "apiservice/v1.nvidia-gpu-scheduler"),
        ("OtherDevicePlugin", "node/node-1"),
        ("MissingCapacity", "node/node-2"),
        ("VersionSkew", "deployment/berth-operator"),
        ("ClockSkew", "node/node-1"),
        ("MissingRights", "serviceaccount/berth-agent"),
    }
    assert desk.run("doctor")[0] == 1


def _plugin_runs(desk: Desk) -> bool:
    pods = desk.api.get("/api/v1/namespaces/team/pods", labelSelector="app=hami")["items"]
    return any(pod["status"].get("phase") == "Running" for pod in pods)


def _break(desk: Desk) -> None:
    """Make one cause of every finding."""
    api = desk.api
    os.kill(desk.operator, signal.SIGTERM)
    lease = "/apis/berth.dev/v1alpha1/namespaces/berth-system/leaderleases/berth-operator"
    desk.wait(lambda: not api.get(lease)["spec"].get("holderIdentity"))
    os.kill(desk.agent, signal.SIGKILL)
    leases = "/apis/coordination.k8s.io/v1/namespaces/berth-node-lease/leases"
    api.delete(f"{leases}/node-0")
    api.merge(f"{leases}/node-1", {"spec": {"renewTime": "2099-01-01T00:00:00.000000Z"}})
    desk.cluster.create_nodes(["bare"], labels={"nvidia.com/gpu.present": "true"})
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/devices.berth.dev"
    versions = api.get(definition)["spec"]["versions"]
    cards = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["devices"]["items"]
    del cards["properties"]["encoders"]
    api.merge(definition, {"spec": {"versions": versions}})
    admission = "/apis/admissionregistration.k8s.io/v1"
    api.delete(f"{admission}/validatingadmissionpolicybindings/berth-fence-epoch")
    api.post(f"{admission}/mutatingwebhookconfigurations", _webhook())
    api.post("/apis/apiregistration.k8s.io/v1/apiservices", _api_service())
    api.post("/apis/apps/v1/namespaces/team/daemonsets", _workload("hami", "example.com/hami:v2", on="node-1"))
    api.post(
        "/apis/apps/v1/namespaces/berth-system/deployments",
        _workload("berth-operator", "berth.dev/berth-operator:0.0.1"),
    )
    sums = dict.fromkeys(("kubernetes.io/gpu", "koordinator.sh/gpu"))
    api.merge("/api/v1/nodes/node-2/status", {"status": {"allocatable": sums}})
    api.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/berth-agent")


def _webhook() -> dict[str, Any]:
    client = {"service": {"namespace": "berth-system", "name": "nothing"}, "caBundle": ""}
    fields = {"sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore"}
    return {
        "metadata": {"name": "berth-injection"},
        "webhooks": [{"name": "a.berth.dev", "clientConfig": client, **fields}],
    }


def _api_service() -> dict[str, Any]:
    service = {"namespace": "berth-system", "name": "nothing"}
    versions = {"version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10}
    spec = {"group": "nvidia-gpu-scheduler", "insecureSkipTLSVerify": True, "service": service, **versions}
    return {"metadata": {"name": "v1.nvidia-gpu-scheduler"}, "spec": spec}


def _workload(name: str, image: str, *, on: str = "nowhere") -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "device-plugin", "image": image}
    pod = {"nodeSelector": {"kubernetes.io/hostname": on}, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
