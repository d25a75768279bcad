"""Kueue in a cluster: its controller as a process in place of a pod, with the rights of its own ServiceAccount.

kueue.start(cluster)
cluster.api.apply(…)  # then ResourceFlavors, ClusterQueues and LocalQueues

Its objects are those of its module's config folder, its Configuration is that of `manifests/components/kueue`.
"""

import base64
import functools
import socket
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import waiting
from devcluster.additions import installation
from devcluster.building import programs
from devcluster.control_plane.api import ApiError
from devcluster.control_plane.cluster import Cluster
from devcluster.processes import state

CONFIGURATION: Final = installation.ROOT / "manifests/components/kueue/configuration.yaml"
NAMESPACE: Final = "kueue-system"
ACCOUNT: Final = "kueue-controller-manager"
SECRET: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets/kueue-webhook-server-cert"
PROGRAM: Final = "kueue"
NOT_APPLIED: Final = {"Deployment", "APIService"}
"""The pods are a process here, and nothing reads what its visibility API serves."""
LAST: Final = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
"""Kinds after which objects of Kueue's need its answer."""
FRAMEWORKS: Final = ("batch/job", "pod", "deployment", "statefulset")
"""What it manages; other frameworks need definitions that are not here."""
DEADLINE: Final = 120.0
PROBE: Final = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "probe"},
    "spec": {},
}

Manifest = dict[str, Any]


def start(cluster: Cluster) -> int:
    """Start Kueue; return its process id when its webhooks answer.

    Raises:
        TimeoutError: it does not answer in time; its log has the reason.
    """
    folder = cluster.folder / PROGRAM
    certificates = folder / "certificates"
    certificates.mkdir(parents=True)
    port = _free_port()
    objects = _objects(cluster, port)
    _apply(cluster, folder, objects)
    file = folder / "configuration.yaml"
    file.write_text(yaml.safe_dump(configuration(port=port, certificates=certificates)))
    kubeconfig = installation.account(cluster, ACCOUNT, namespace=NAMESPACE)
    program = programs.ensure(programs.QUOTAS)[PROGRAM]
    pid = cluster.run(PROGRAM, [str(program), f"--config={file}"], environment={"KUBECONFIG": str(kubeconfig)})
    written = functools.partial(_write_certificates, cluster, certificates)
    waiting.until(written, deadline=DEADLINE, what="the certificate of Kueue's webhooks", poll=0.2)
    waiting.until(lambda: _answers(cluster), deadline=DEADLINE, what="Kueue's webhooks", poll=0.5)
    return pid


def configuration(*, port: int, certificates: Path) -> Manifest:
    """Return the shipped Configuration with what is different on one machine: ports, folders, no second instance."""
    shipped: Manifest = yaml.safe_load(CONFIGURATION.read_text())
    own = {
        "namespace": NAMESPACE,
        "webhook": {"host": installation.LOOPBACK, "port": port, "certDir": str(certificates)},
        # Several clusters may run on one machine, so it takes no fixed port.
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": list(FRAMEWORKS)},
    }
    return shipped | own


def _free_port() -> int:
    with socket.create_server((installation.LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _objects(cluster: Cluster, port: int) -> list[Manifest]:
    """Return Kueue's own objects; its webhooks are served at a port of this machine."""
    text = cluster.kubectl("kustomize", str(programs.source(PROGRAM) / "config/default"))
    objects = [each for each in yaml.safe_load_all(text) if each["kind"] not in NOT_APPLIED]
    for each in objects:
        if each["kind"] == "Service":
            each["spec"] = installation.OF_THIS_MACHINE
        for service in _services(each):
            service["port"] = port
    return objects


def _services(obj: Manifest) -> list[Manifest]:
    """Return the references to a Service in a definition or a configuration of webhooks."""
    conversion = obj.get("spec", {}).get("conversion", {}).get("webhook") if "spec" in obj else None
    webhooks = [*obj.get("webhooks", ()), *([conversion] if conversion else [])]
    return [webhook["clientConfig"]["service"] for webhook in webhooks]


def _apply(cluster: Cluster, folder: Path, objects: list[Manifest]) -> None:
    definitions = [each for each in objects if each["kind"] == "CustomResourceDefinition"]
    crds = folder / "crds"
    crds.mkdir()
    (crds / "all.yaml").write_text(yaml.safe_dump_all(definitions))
    cluster.install_crds(crds)
    for each in sorted(objects, key=lambda each: (each["kind"] != "Namespace", each["kind"] in LAST)):
        if each not in definitions:
            cluster.api.apply(each)


def _write_certificates(cluster: Cluster, folder: Path) -> bool:
    """Write the certificate that Kueue has made for itself, as kubelet would mount it; return whether there is one."""
    data: dict[str, str] = cluster.api.get(SECRET).get("data", {})
    for name, value in data.items():
        state.write_private(folder / name, base64.b64decode(value).decode())
    return "tls.key" in data


def _answers(cluster: Cluster) -> bool:
    try:
        cluster.api.apply(PROBE)
        cluster.api.delete(cluster.api.path_of(PROBE))
    except ApiError:  # the webhook does not serve yet, or not with the certificate that the API server knows
        return False
    return True
