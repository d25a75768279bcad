"""The shipped ServiceAccounts with their roles, policies and tokens, under the names of one arena."""

import functools
import json
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import Arena
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.programs import policies

MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
ROLES: Final = (
    "base/operator-rbac.yaml",
    "base/agent-rbac.yaml",
    "components/dra/rbac.yaml",
    "components/validation/rbac.yaml",
    "components/list-watch-api/rbac.yaml",
    "base/visibility.yaml",
    "base/user-rbac.yaml",
    "components/monitoring-prometheus-operator/pod-monitors.yaml",
)
SKIPPED: Final = {"PodMonitor", "Secret", "Service"}
POLICIES: Final = ("protection.yaml", "limits.yaml", "../components/dra/slices.yaml")
RBAC: Final = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
OF_THE_CLUSTER: Final = {"ClusterRole", "ClusterRoleBinding"}
ADDED: Final = "example.com/added"
PROTECTED: Final = (
    "berth.dev/epoch",
    "model.berth.dev/stolen",
    "main.devices.berth.dev/memory-limit-0",
    "scheduling.koordinator.sh/device-allocated",
    "node.koordinator.sh/stolen",
)
ADDED_KEYS: Final = {
    resource: [ADDED, *PROTECTED]
    for resource in ("apiservices", "bindings", "nodes", "persistentvolumeclaims", "persistentvolumes", "pods")
}
"""Resource -> keys that other admission adds. An administrator listed keys that no account may set for this reason."""
CALLING: Final = {"admissionregistration.k8s.io", "apiregistration.k8s.io"}
"""Groups of the objects by which the API server calls a server; these have the name of the arena at their end."""
OPERATOR: Final = "berth-operator"
"""The operator's account, its roles, and the LeaderLease that they name."""
HEARTBEATS: Final = "berth-node-lease"
ACTIVE_SECONDS: Final = 30.0
"""Longest time in seconds until policies and rights are in force."""


class Accounts:
    """The accounts of one arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._applied: list[Manifest] = []
        self._clients: list[Api] = []

    def open(self) -> None:
        """Apply accounts, roles and policies."""
        for file in ROLES:
            documents = yaml.safe_load_all((MANIFESTS / file).read_text())
            for document in (each for each in documents if each["kind"] not in SKIPPED):
                self._applied += self._arena.apply(self._confined(document))
        for file in POLICIES:
            variables = {"added": json.dumps(ADDED_KEYS)}
            self._applied += self._arena.apply(policies.policies(file, self._arena, variables))

    def close(self) -> None:
        """Delete everything that does not go with the namespace."""
        for client in self._clients:
            client.close()
        api = self._arena.cluster.api
        for document in self._applied:
            if document["metadata"].get("namespace") != self._arena.namespace:
                api.delete(api.path_of(document))

    def policies(self) -> list[Manifest]:
        """Return the policies as applied."""
        return [each for each in self._applied if each["kind"] == "ValidatingAdmissionPolicy"]

    def wait(self, refused: Api, path: str, body: dict[str, Any]) -> None:
        """Wait until the policies about a client refuse a merge patch."""

        def is_refused() -> bool:
            try:
                refused.request(
                    "PATCH", path, body=body, query={"dryRun": "All"}, content_type="application/merge-patch+json"
                )
            except ApiError as error:
                return "ValidatingAdmissionPolicy" in str(error)
            return False

        self._arena.wait(is_refused, deadline=ACTIVE_SECONDS, what="the policies about a client to be in force")

    def operator(self) -> Path:
        """Return a kubeconfig of the operator, which may also read the heartbeats that all arenas share."""
        name = f"{OPERATOR}-{self._arena.id}"
        for document in yaml.safe_load_all((MANIFESTS / "base/operator-rbac.yaml").read_text()):
            if document["metadata"].get("namespace") == HEARTBEATS:
                document["metadata"] |= {"name": name, "labels": self._arena.labels}
                for subject in document.get("subjects", ()):
                    subject["namespace"] = self._arena.namespace
                if "roleRef" in document:
                    document["roleRef"]["name"] = name
                self._applied += self._arena.apply(document)
        return self.kubeconfig(OPERATOR)

    @functools.cache  # noqa: B019 - for the tests of one module
    def token(self, account: str) -> str:
        """Return a token of an account that is bound to no pod."""
        accounts = f"/api/v1/namespaces/{self._arena.namespace}/serviceaccounts"
        answer = self._arena.cluster.api.post(f"{accounts}/{account}/token", {"spec": {"expirationSeconds": 3600}})
        token: str = answer["status"]["token"]
        return token

    def kubeconfig(self, account: str) -> Path:
        """Return a kubeconfig that acts as an account."""
        file = self._arena.folder / f"{account}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(self._arena.cluster.kubeconfig_for(self.token(account)))
        return file

    def client(self, account: str, *, node: str | None = None) -> Api:
        """Return a client with a token of an account; with a node, the token of its pod there."""
        spec: Manifest = {"expirationSeconds": 3600}
        if node is not None:
            manifest = self._arena.pod(f"{account}-{node}", nodeName=node, serviceAccountName=account)
            pod = self._arena.create([manifest])[0]["metadata"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
        accounts = f"/api/v1/namespaces/{self._arena.namespace}/serviceaccounts"
        answer = self._arena.cluster.api.post(f"{accounts}/{account}/token", {"spec": spec})
        cluster = self._arena.cluster
        self._clients.append(
            Api(server=cluster.server, token=answer["status"]["token"], ca=cluster.ca_file.read_text())
        )
        return self._clients[-1]

    def _confined(self, document: Manifest) -> Manifest:
        """Return an object of the manifests for this arena: namespaces and names are its own."""
        metadata, own = document["metadata"], self._arena.namespace
        namespace = metadata.get("namespace", "")
        if document["kind"] in RBAC:
            metadata["name"] = self._named(document["kind"], metadata["name"], namespace)
        if namespace.startswith("berth-"):
            metadata["namespace"] = own
        for subject in document.get("subjects", ()):
            subject["namespace"] = own
        for rule in document.get("rules", ()):
            if CALLING & set(rule.get("apiGroups", ())) and "resourceNames" in rule:
                rule["resourceNames"] = [f"{name}-{self._arena.id}" for name in rule["resourceNames"]]
        role = document.get("roleRef", {"name": ""})
        if role["name"].startswith("berth-"):
            role["name"] = self._named(role["kind"], role["name"], namespace)
        metadata["labels"] = self._arena.labels
        return document

    def _named(self, kind: str, name: str, namespace: str) -> str:
        suffix = self._arena.id if kind in OF_THE_CLUSTER else f"{namespace}-{self._arena.id}"
        return f"{name}-{suffix}"
