"""Third-party controllers in a cluster. Each runs as a process, not as a pod, with its own ServiceAccount's rights.

controllers.start(cluster, [JOB_SET])

Most of these controllers are built with controller-runtime: they read a Configuration, and serve webhooks with a
certificate at the path where they look for one. Others have only arguments, and serve no webhooks. A controller's
objects come from its module's kustomize folders.
"""

import base64
import functools
import http.client
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import waiting
from devcluster.additions import installation
from devcluster.building import programs
from devcluster.control_plane import certificates, manifests
from devcluster.control_plane.api import ApiError
from devcluster.control_plane.cluster import Cluster
from devcluster.processes import state

NOT_APPLIED: Final = {"Deployment", "APIService", "ConfigMap"}
"""The pods are a process here that reads a file, and nothing reads what an aggregated API serves."""
LAST: Final = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
"""Kinds after which the controller's objects need its answer."""
CERTIFICATES: Final = "k8s-webhook-server/serving-certs"
"""Where controller-runtime looks for a certificate, below the folder for temporary files, if no other is named."""
DEADLINE: Final = 120.0
OWN: Final[Mapping[str, Any]] = {
    # Several clusters may run on one machine, so nothing takes a fixed port.
    "metrics": {"bindAddress": "0"},
    "health": {"healthProbeBindAddress": "0"},
    "leaderElection": {"leaderElect": False},
}

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A controller, and how it is installed."""

    program: str
    namespace: str
    account: str
    folders: Sequence[str]
    """Of its module, for kustomize."""
    configuration: Manifest | None = None
    """What differs from `OWN`, and its kind; None if it reads no Configuration."""
    arguments: Sequence[str] = ()
    """Instead of a Configuration."""
    probe: Manifest
    """An object that its webhooks are asked about; it is never created."""
    is_placed: bool = True
    """Whether the folders name the namespace."""
    names_folder: bool = True
    """Whether its Configuration names the folder with the certificate."""
    own_certificate: str = ""
    """The name of the Secret with the certificate that it makes for itself, if it runs with no other."""
    addition: Path | None = None
    """A file with objects that are applied in addition."""


def start(cluster: Cluster, chosen: Sequence[Controller]) -> list[int]:
    """Start controllers in this order; return their process ids when the webhooks of all answer.

    Raises:
        WaitError: one does not answer in time; with the last lines of its log.
    """
    pids = [_launch(cluster, controller) for controller in chosen]
    for controller in chosen:
        answers = functools.partial(_answers, cluster, controller.probe)
        log = functools.partial(_end_of_log, cluster, controller)
        waiting.until(answers, deadline=DEADLINE, what=f"the webhooks of {controller.program}", poll=0.5, details=log)
    return pids


def _end_of_log(cluster: Cluster, controller: Controller) -> str:
    return "\n".join(installation.last_lines(cluster, controller.program))


def _launch(cluster: Cluster, controller: Controller) -> int:
    folder = cluster.folder / controller.program
    with socket.create_server((installation.LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
    # The controller's webhooks are served at a port of this machine.
    objects = [obj for obj in _rendered(cluster, controller, folder) if obj["kind"] not in NOT_APPLIED]
    served = [client for obj in objects for client in _clients(obj)]
    names = sorted({f"{client['service']['name']}.{client['service']['namespace']}.svc" for client in served})
    # One that makes its own waits until the file is there, so no other may be there before.
    trusted = {}
    if names and not controller.own_certificate:
        trusted = {"caBundle": _write_certificate(folder / CERTIFICATES, names)}
    for client in served:
        client.update(trusted)
        client["service"]["port"] = port
    for obj in objects:
        if obj["kind"] == "Service":
            obj["spec"] = installation.OF_THIS_MACHINE
    _apply(cluster, folder, objects)
    arguments = controller.arguments
    if controller.configuration is not None:
        file = folder / "configuration.yaml"
        webhook: Manifest = {"host": installation.LOOPBACK, "port": port}
        if controller.names_folder:
            webhook["certDir"] = str(folder / CERTIFICATES)
        file.write_text(yaml.safe_dump({**OWN, "webhook": webhook, **controller.configuration}))
        arguments = [f"--config={file}"]
    kubeconfig = installation.account(cluster, controller.account, namespace=controller.namespace)
    program = programs.ensure([controller.program])[controller.program]
    environment = {"KUBECONFIG": str(kubeconfig), "TMPDIR": str(folder)}
    pid = cluster.run(controller.program, [str(program), *arguments], environment=environment)
    if controller.own_certificate:
        written = functools.partial(_write_own, cluster, controller, folder / CERTIFICATES)
        waiting.until(written, deadline=DEADLINE, what=f"the certificate of {controller.program}", poll=0.2)
    return pid


def _rendered(cluster: Cluster, controller: Controller, folder: Path) -> list[Manifest]:
    source, overlay = programs.source(controller.program), folder / "overlay"
    overlay.mkdir(parents=True)
    kustomization: Manifest = {
        # It takes no absolute paths.
        "resources": [os.path.relpath(source / folder, overlay.resolve()) for folder in controller.folders]
    }
    if not controller.is_placed:
        kustomization["namespace"] = controller.namespace
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": controller.namespace}}
    added = installation.documents(controller.addition) if controller.addition else []
    return [namespace, *manifests.documents(cluster.kubectl("kustomize", str(overlay))), *added]


def _clients(obj: Manifest) -> list[Manifest]:
    """Return how the API server calls each webhook of a definition or a configuration."""
    conversion = obj.get("spec", {}).get("conversion", {}).get("webhook") if "spec" in obj else None
    webhooks = [*obj.get("webhooks", ()), *([conversion] if conversion else [])]
    return [webhook["clientConfig"] for webhook in webhooks]


def _write_certificate(folder: Path, names: Sequence[str]) -> str:
    """Write a certificate for the names, as kubelet would mount it; return what the API server has to trust."""
    certificate, key = certificates.self_signed(names)
    folder.mkdir(parents=True)
    (folder / "tls.crt").write_bytes(certificate)
    state.write_private(folder / "tls.key", key)
    return certificates.encoded(certificate)


def _write_own(cluster: Cluster, controller: Controller, folder: Path) -> bool:
    """Write the certificate that a controller has made for itself; return whether there is one."""
    path = f"/api/v1/namespaces/{controller.namespace}/secrets/{controller.own_certificate}"
    data: dict[str, str] = cluster.api.get(path).get("data", {})
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in data.items():
        state.write_private(folder / name, base64.b64decode(value).decode())
    return "tls.key" in data


def _apply(cluster: Cluster, folder: Path, objects: Sequence[Manifest]) -> None:
    definitions = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
    crds = folder / "crds"
    crds.mkdir()
    # KubeRay's have 60,000 lines: as JSON, which is YAML, they are written at once.
    (crds / "all.yaml").write_text("\n---\n".join(map(json.dumps, definitions)))
    cluster.install_crds(crds)
    for obj in sorted(objects, key=lambda obj: (obj["kind"] != "Namespace", obj["kind"] in LAST)):
        if obj not in definitions:
            cluster.api.apply(obj)


def _answers(cluster: Cluster, probe: Manifest) -> bool:
    """Return whether the webhooks answer, be it with a refusal."""
    resource = cluster.api.resource(probe["kind"], api_version=probe["apiVersion"])
    path = resource.path(namespace="default")
    try:
        cluster.api.request("POST", path, body=probe, query={"dryRun": "All"})
    except ApiError as error:  # an internal error: they do not serve yet
        return error.status != http.client.INTERNAL_SERVER_ERROR
    return True
