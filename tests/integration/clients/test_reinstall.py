"""The shipped manifests, installed, removed and installed again on one API server, with real operators.

The test has its own cluster, because the CRD and the names of manifests/base belong to the whole cluster.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from berth_base.start import MISTAKE
from devcluster import Cluster, waiting
from devcluster.control_plane.api import Api, ApiError
from tests.integration.operator.world import condition
from tests.programs import forking
from tests.programs.processes import LEADING, QUICK_TERMS, Process
from tests.stand_ins.proxy import FaultProxy

ROOT = Path(__file__).parents[3]
BASE = ROOT / "manifests/base"
CRD = ROOT / "crds/leaderleases.berth.dev.yaml"
PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/berth.dev/v1alpha1/namespaces/berth-system/leaderleases"
FENCE = {
    "policy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/berth-fence-epoch",
    "binding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/berth-fence-epoch",
    "object": f"{LEASES}/berth-operator",
    "definition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/leaderleases.berth.dev",
}
EARLIER = "the API server shows an earlier state"
WAITING = "waiting for the API server to load the fence"
UNSERVED = "the API server does not serve berth.dev/v1alpha1 LeaderLeases: apply crds/ first"


class Site:
    """The cluster, and the operators that a test starts in it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.api, self.folder = cluster, cluster.api, folder
        self.operators: list[Process] = []

    def install(self) -> None:
        self.cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        self.cluster.kubectl("apply", "--server-side", "-k", str(BASE))

    def uninstall(self) -> None:
        self.cluster.kubectl("delete", "-k", str(BASE))

    def token(self) -> str:
        path = "/api/v1/namespaces/berth-system/serviceaccounts/berth-operator/token"
        return str(self.api.post(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"])

    def kubeconfig(self) -> Path:
        file = self.folder / f"operator-{len(self.operators)}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(self.cluster.kubeconfig_for(self.token()))
        return file

    def operator(self, **flags: object) -> Process:
        """Start an operator with the account and the names of manifests/base; flags are named as in its settings."""
        flags = {"kubeconfig": self.kubeconfig(), "health": "", "metrics_port": 0, "debug_port": 0, **flags}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        process = Process(
            name=f"operator-{len(self.operators)}",
            command=[sys.executable, "-m", "berth_operator", "--require-fence", *options],
            folder=self.folder,
            environment={"BERTH_LOG_FORMAT": "json", "PYTHONUNBUFFERED": "1"},
            start=forking.spawn,
        )
        self.operators.append(process)
        return process

    @functools.cached_property
    def account(self) -> Api:
        """Return a client with the operator's rights."""
        return Api(server=self.cluster.server, token=self.token(), ca=self.cluster.ca_file.read_text())

    def pod(self, name: str) -> None:
        spec = {"schedulerName": "berth-scheduler", "containers": [{"name": "main", "image": "none"}]}
        self.api.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def get(self, name: str) -> dict[str, Any]:
        return self.api.get(f"{PODS}/{name}")

    def is_bound(self, name: str) -> bool:
        return "nodeName" in self.get(name)["spec"]

    def keeps_running(self) -> bool:
        """Start the operator again if it exited, as its Deployment would; return whether it had kept running."""
        running = self.operators[-1].exit_code is None
        if not running:
            self.operator(**QUICK_TERMS)
        return running

    def refusal(self, term: int) -> str:
        """Return the refusal of the operator's Binding of a missing pod; empty if only the pod is missing."""
        metadata = {
            "name": "missing",
            "labels": {"berth.dev/fenced-by": "berth-operator"},
            "annotations": {"berth.dev/epoch": str(term)},
        }
        body = {"metadata": metadata, "target": {"kind": "Node", "name": "node-0"}}
        try:
            self.account.post(f"{PODS}/missing/binding", body)
        except ApiError as error:
            return "" if error.status == HTTPStatus.NOT_FOUND else str(error)
        raise AssertionError("a missing pod was bound")

    def until(self, predicate: Any, what: str) -> None:
        waiting.until(predicate, what=what)

    def until_bound(self, name: str) -> None:
        self.until(lambda: self.is_bound(name), f"{name} to be bound")

    def until_unserved(self) -> None:
        """Wait until the API server no longer serves LeaderLeases: a definition lives until its objects are deleted."""

        def is_unserved() -> bool:
            kinds = self.api.get("/apis/berth.dev/v1alpha1")["resources"]
            return all(each["kind"] != "LeaderLease" for each in kinds)

        self.until(is_unserved, "LeaderLeases to be gone")

    def refused(self) -> None:
        """Start an operator, which must end at once because its kinds are not served."""
        operator = self.operator()
        assert operator.ended() == MISTAKE
        assert operator.text().splitlines()[-1] == f"berth-operator: {UNSERVED}"

    def release_lease(self) -> None:
        self.api.merge(FENCE["object"], {"spec": {"holderIdentity": ""}})


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.create_nodes(["node-0"])
        yield running


@pytest.fixture
def site(own_cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    own = Site(own_cluster, tmp_path)
    own.install()
    yield own
    for process in own.operators:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        sys.stdout.write(f"--- {process.name}\n{process.tail()}\n")
    own.account.close()
    own.api.delete(PODS, grace_seconds=0)
    own.api.delete(FENCE["object"])


def test_operator_binds_after_each_of_two_reinstallations(site: Site) -> None:
    for number in range(3):
        if number:
            site.uninstall()
            site.install()
        operator = site.operator()
        operator.logged(LEADING)
        site.pod(f"p{number}")
        site.until_bound(f"p{number}")
        operator.kill()  # as if its Deployment were deleted


@pytest.mark.parametrize(
    ("deleted", "refusal"),
    [("policy", WAITING), ("binding", WAITING), ("object", '"term changed"'), ("definition", UNSERVED)],
)
def test_paused_leader_binds_nothing_once_its_fence_was_deleted_and_is_back(
    site: Site, tmp_path: Path, deleted: str, refusal: str
) -> None:
    with FaultProxy(server=site.cluster.server, ca_file=site.cluster.ca_file, folder=tmp_path) as proxy:
        paused = site.operator(kubeconfig=proxy.kubeconfig(site.token()), **QUICK_TERMS)
        paused.logged(LEADING)
        bind = proxy.hold("POST", "/pods/p/binding$", count=1)
        site.pod("p")
        bind.wait()
        paused.pause()
        site.release_lease()  # as if it had run out
        site.api.delete(FENCE[deleted])
        if refusal == UNSERVED:
            site.until_unserved()
            site.refused()
            site.install()
        if refusal == WAITING:
            # The API server evaluates a policy for up to a second after it was deleted.
            site.until(lambda: not site.refusal(0), "the fence to be gone")
        # It leads, and decides nothing within this test: only the old decision can arrive.
        successor = site.operator(takeover_pause=600, **QUICK_TERMS)
        if refusal != UNSERVED:
            successor.logged(refusal)
            site.install()
        successor.logged('"fence loaded"')

        bind.release()
        paused.resume()

        # If its term has not run out, it stays, and lists again: another LeaderLease may be that of a restored etcd.
        site.until(lambda: paused.exit_code == 1 or EARLIER in paused.text(), "the paused operator to notice")
        # The sender may no longer have waited for it.
        site.until(lambda: bind.answers, "the answer to the old decision")
        assert bind.answers == [HTTPStatus.FORBIDDEN]
        assert not site.is_bound("p")
        successor.kill()
        paused.kill()
        site.release_lease()
        site.operator(**QUICK_TERMS).logged(LEADING)
        site.until_bound("p")


@pytest.mark.parametrize("deleted", FENCE)
def test_running_leader_whose_fence_was_deleted_binds_again_once_it_is_back(site: Site, deleted: str) -> None:
    site.operator(**QUICK_TERMS).logged(LEADING)

    site.api.delete(FENCE[deleted])
    site.pod("p")
    site.install()
    site.pod("q")

    site.until(lambda: site.keeps_running() and site.is_bound("p") and site.is_bound("q"), "both to be bound")
    lease = site.api.get(FENCE["object"])
    assert site.get("q")["metadata"]["annotations"]["berth.dev/epoch"] == str(lease["spec"]["term"])


def test_pod_says_why_it_waits_while_the_kind_is_missing_and_is_bound_later(site: Site) -> None:
    leader = site.operator(**QUICK_TERMS)
    leader.logged(LEADING)
    term = site.api.get(FENCE["object"])["spec"]["term"]

    site.api.delete(FENCE["definition"])
    site.until(lambda: site.refusal(term), "the API server to miss the kind")
    site.until_unserved()
    site.pod("p")

    site.until(lambda: "no params found" in condition(site.get("p"), "PodScheduled").get("message", ""), "a condition")
    assert condition(site.get("p"), "PodScheduled")["status"] == "False"
    events = "/api/v1/namespaces/default/events"
    site.until(
        lambda: [each for each in site.api.get(events)["items"] if each["reason"] == "FailedBinding"], "an Event"
    )
    assert leader.ended() == 1  # and its Deployment starts it again
    site.refused()
    site.install()
    site.operator(**QUICK_TERMS).logged(LEADING)
    site.until_bound("p")


def test_operator_that_elects_by_a_lease_binds_nothing_after_an_upgrade(site: Site) -> None:
    """It sends the Lease's leaseTransitions, which the previous fence compared with its parameter, that Lease."""
    site.cluster.kubectl("apply", "--server-side", "-f", "-", input=older_fence())
    lease = {"metadata": {"name": "berth-operator"}, "spec": {"leaseTransitions": 5}}
    site.api.post("/apis/coordination.k8s.io/v1/namespaces/berth-system/leases", lease)
    site.until(lambda: not site.refusal(5), "the older operator's term to pass its fence")

    site.install()

    operator = site.operator()
    operator.logged(LEADING)
    term = site.api.get(FENCE["object"])["spec"]["term"]
    assert f"epoch 5 is over, the LeaderLease berth-operator is in term {term}" in site.refusal(5)


def older_fence() -> str:
    text = (BASE / "fence.yaml").read_text().replace("berth.dev/v1alpha1", "coordination.k8s.io/v1")
    return text.replace("kind: LeaderLease", "kind: Lease").replace("params.spec.term", "params.spec.leaseTransitions")
