"""The rights of simulated agents. Each node has a pod of the agent, whose token writes the node's objects.

So the shipped rights and the policy `berth-agents` apply to a simulated fleet as to real agents. One process simulates
the agents of all nodes, so it has the tokens of all.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from devcluster.additions import installation
from devcluster.control_plane.api import Manifest
from devcluster.control_plane.cluster import Cluster
from devcluster.processes import state

ACCOUNT: Final = "berth-agent"
DAEMON_SET: Final = "simulated-agents"
POLICY: Final = "berth-agents"
PODS: Final = f"/api/v1/namespaces/{installation.AGENTS}/pods"
SERVICE_ACCOUNT: Final = f"/api/v1/namespaces/{installation.AGENTS}/serviceaccounts/{ACCOUNT}"
TOKEN: Final = f"{SERVICE_ACCOUNT}/token"
MOST_TOKENS: Final = 200
"""Nodes beyond which a fleet has no tokens of nodes: a pod and its token take the API server 10 ms."""
OF_A_FLEET: Final = {"at": "object == null ? oldObject.metadata.name : object.metadata.name"}
"""Where an agent is, in the policy of a fleet without tokens of nodes: on the node of the object that it writes."""


def apply_rights(cluster: Cluster, variables: Mapping[str, str] | None = None) -> None:
    """Apply the agents' account, rights and policy; `variables` replace expressions of the policy by name."""
    installation.create_namespaces(cluster)
    for document in installation.documents(installation.BASE / "agent-rbac.yaml"):
        cluster.api.apply(document)
    for document in installation.documents(installation.BASE / "protection.yaml"):
        if document["metadata"]["name"] == POLICY:
            for variable in document["spec"].get("variables", ()):
                variable["expression"] = (variables or {}).get(variable["name"], variable["expression"])
            cluster.api.apply(document)


def options(cluster: Cluster, nodes: Sequence[str]) -> list[str]:
    """Apply the rights of agents; return the options of one agent that simulates the agents of all these nodes.

    It writes each node with the token of a pod there. Beyond MOST_TOKENS nodes, the policy accepts one token for all.
    """
    has_tokens = len(nodes) <= MOST_TOKENS
    apply_rights(cluster, {} if has_tokens else OF_A_FLEET)
    own = Agents(cluster, cluster.folder)
    login = ["--inventory=simulated", f"--kubeconfig={own.kubeconfig}"]
    if not has_tokens:
        return login
    own.place(nodes)
    own.adopt()
    return [*login, f"--fleet-tokens={own.tokens}"]


class Agents:
    """The pods of simulated agents in one cluster, and the files with their tokens.

    It applies the shipped rights if the cluster lacks them.

    Attributes:
        kubeconfig: with a token that names no node, with which an agent only reads.
        tokens: the folder of the tokens, each in a file of its node's name.
    """

    def __init__(self, cluster: Cluster, folder: Path, *, labels: Mapping[str, str] | None = None) -> None:
        if not cluster.api.exists(SERVICE_ACCOUNT):
            apply_rights(cluster)
        self._cluster = cluster
        self._labels = {"app.kubernetes.io/name": ACCOUNT, **(labels or {})}
        self.tokens = folder / "agent-tokens"
        self.tokens.mkdir(mode=0o700, exist_ok=True)
        self.kubeconfig = folder / f"{ACCOUNT}.kubeconfig"
        state.write_private(self.kubeconfig, cluster.kubeconfig_for(*self._tokens([{}])))

    def place(self, nodes: Iterable[str]) -> None:
        """Place an agent's pod on each node that has none from here, and write its token."""
        fresh = [node for node in nodes if not (self.tokens / node).exists()]
        pods = self._cluster.api.create_all(PODS, map(self._pod, fresh))
        for node, token in zip(fresh, self._tokens(map(_reference, pods)), strict=True):
            state.write_private(self.tokens / node, token)

    def adopt(self) -> None:
        """Create a DaemonSet that owns the pods, because `kubectl drain` refuses pods without a controller.

        Its controller adopts the pods that are there, and never replaces them.
        """
        spec = self._pod("")["spec"]
        del spec["nodeName"]
        self._cluster.api.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": DAEMON_SET, "namespace": installation.AGENTS},
                "spec": {
                    "selector": {"matchLabels": self._labels},
                    "updateStrategy": {"type": "OnDelete"},
                    "template": {"metadata": {"labels": self._labels}, "spec": spec},
                },
            }
        )

    def remove(self) -> None:
        """Delete the pods, with which their tokens end."""
        self._cluster.api.delete(PODS, grace_seconds=0, labelSelector=",".join(map("=".join, self._labels.items())))

    def kubeconfig_on(self, node: str) -> Path:
        """Return a kubeconfig with the token of a node's agent."""
        self.place([node])
        file = self.tokens / f"{node}.kubeconfig"
        state.write_private(file, self._cluster.kubeconfig_for((self.tokens / node).read_text()))
        return file

    def _pod(self, node: str) -> Manifest:
        container = {"name": "agent", "image": "none"}
        return {
            "metadata": {"name": f"{ACCOUNT}-{node}", "labels": self._labels},
            "spec": {
                "serviceAccountName": ACCOUNT,
                "nodeName": node,
                "containers": [container],
                "priorityClassName": "system-node-critical",
                "tolerations": [{"operator": "Exists"}],
            },
        }

    def _tokens(self, bound_to: Iterable[Manifest]) -> list[str]:
        """Return a token for each of some references; an empty one is to nothing."""
        specs = [{"expirationSeconds": installation.TOKEN_SECONDS, **reference} for reference in bound_to]
        answers = self._cluster.api.create_all(TOKEN, [{"spec": spec} for spec in specs])
        return [answer["status"]["token"] for answer in answers]


def _reference(pod: Manifest) -> Manifest:
    metadata = pod["metadata"]
    return {
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
    }
