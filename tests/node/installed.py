"""Berth as a release installs it: operator, webhook and agent are pods of a real node, and nothing is pulled.

The node has no network. So these pods use the machine's network (`hostNetwork`) on free ports, and find the API server
by its address. There is one of each pod. The agent loads the NVML fixture. Everything else is as shipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import yaml

from devcluster import Cluster
from tests.integration.operator import world
from tests.nvml.fixture import NvmlFixture
from tests.programs import released
from tests.programs.chart import NAMESPACE, helm
from tests.programs.policies import built

DEFINITION: Final = "CustomResourceDefinition"
COMPONENTS: Final = ("device-plugin", "webhook", "nics")
CONTAINER: Final = "/spec/template/spec/containers/0"
VOLUMES: Final = "/spec/template/spec/volumes"


Values = dict[str, Any]


class Installation(Protocol):
    """A way to install Berth in a cluster, and to remove it."""

    def install(self) -> None:
        """Apply everything and return at once."""

    def upgrade(self) -> None:
        """Change something of the operator; return when its new pod is ready."""

    def uninstall(self) -> None:
        """Delete everything but the definitions; return when it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an installation has to know of this machine.

    Attributes:
        cluster: where Berth is installed.
        machine: the cards of the node.
        ports: a free port for each listener of the programs.
    """

    cluster: Cluster
    machine: NvmlFixture
    ports: Mapping[str, int] = field(default_factory=lambda: _ports("health", "metrics", "debug", "webhook", "agent"))

    @property
    def api_server(self) -> tuple[str, int]:
        """Host and port of the API server."""
        address = urlsplit(self.cluster.server)
        assert address.hostname
        assert address.port
        return address.hostname, address.port

    @property
    def agent_variables(self) -> dict[str, str]:
        """The variables by which the agent finds the cards."""
        machine = self.machine
        settings = {"BERTH_AGENT_NVML_LIBRARY": str(machine.library), "BERTH_AGENT_SYSFS_ROOT": str(machine.sysfs)}
        return {**machine.environment(), **settings}

    @property
    def folders(self) -> list[Path]:
        """The folders of the cards, which the agent mounts under the same paths."""
        return [self.machine.folder, self.machine.library.parent]


def _ports(*names: str) -> dict[str, int]:
    return dict(zip(names, world.free_ports(len(names)), strict=True))


class Kustomization:
    """The manifests by kubectl: the base, the agent as device plugin, and the webhook in place of policies."""

    def __init__(
        self,
        place: Place,
        folder: Path,
        *,
        root: Path | None = None,
        components: Sequence[str] = COMPONENTS,
        images: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Write the manifests of the release to a folder, or those of another version's `root` with its `images`."""
        self._cluster = place.cluster
        self._crds = root / "crds" if root else released.file(released.DEFINITIONS)
        self._file = folder / "manifests.yaml"
        sources = {"manifests": root / "manifests"} if root else {"base": released.file(released.MANIFEST)}
        objects = built(folder, *components, patches=list(_patches(place)), images=images, **sources)
        # The definitions of a release are in its manifests, too, and stay when these are deleted.
        self._file.write_text(yaml.safe_dump_all(obj for obj in objects if obj["kind"] != DEFINITION))

    def install(self) -> None:
        """Apply the definitions and the manifests, as docs/install.md has it."""
        self._cluster.kubectl("apply", "--server-side", "-f", str(self._crds))
        self._cluster.kubectl("apply", "--server-side", "-f", str(self._file))

    def upgrade(self) -> None:
        """Restart the operator, as a change of its manifest would."""
        operator = ("deployment/berth-operator", f"--namespace={NAMESPACE}")
        self._cluster.kubectl("rollout", "restart", *operator)
        self._cluster.kubectl("rollout", "status", *operator)

    def uninstall(self) -> None:
        """Delete the manifests; the definitions stay."""
        self._cluster.kubectl("delete", "--ignore-not-found", "-f", str(self._file))


class Release:
    """The chart by helm, with the same parts."""

    def __init__(self, place: Place, folder: Path) -> None:  # noqa: ARG002 - as the other needs it
        self._kubeconfig = place.cluster.kubeconfig
        self._values = {**chart_values(place), "nics": {"enabled": True, "ncclIbHca": True}}
        self._chart = released.file(released.CHART)

    def install(self) -> None:
        """Install the chart; the definitions are applied by its hook."""
        self._helm("install", "berth", self._chart, "--create-namespace", values=self._values)

    def upgrade(self) -> None:
        """Change a value."""
        values = {"operator": {"logLevel": "debug"}}
        self._helm("upgrade", "berth", self._chart, "--reuse-values", "--wait", values=values)

    def uninstall(self) -> None:
        """Uninstall the release; its hook cleans up before, and the definitions stay."""
        self._helm("uninstall", "berth", "--wait", "--ignore-not-found")

    def _helm(self, command: str, *arguments: str | Path, values: Values | None = None) -> None:
        helm(command, *arguments, f"--namespace={NAMESPACE}", values=values, kubeconfig=self._kubeconfig)


def chart_values(place: Place) -> Values:
    """Return the values of the chart for a node without network, whose cards are those of the NVML fixture."""
    host, port = place.api_server
    ports = place.ports
    volumes = {f"cards-{number}": str(folder) for number, folder in enumerate(place.folders)}
    return {
        "apiServer": {"host": host, "port": port},
        "image": {"pullPolicy": "Never"},
        "operator": {
            "replicas": 1,
            "hostNetwork": True,
            "healthPort": ports["health"],
            "metricsPort": ports["metrics"],
        },
        "debugApi": {"port": ports["debug"]},
        "admission": {"by": "webhook"},
        "webhook": {"replicas": 1, "hostNetwork": True, "port": ports["webhook"]},
        "agent": {
            "hostNetwork": True,
            "devicePlugin": True,
            "metricsPort": ports["agent"],
            "extraEnv": [{"name": name, "value": value} for name, value in place.agent_variables.items()],
            "extraVolumes": [
                {"name": name, "hostPath": {"path": path, "type": "Directory"}} for name, path in volumes.items()
            ],
            "extraVolumeMounts": [
                {"name": name, "mountPath": path, "readOnly": True} for name, path in volumes.items()
            ],
        },
    }


def _patches(place: Place) -> Iterator[dict[str, Any]]:
    # A level of Pod Security that allows the machine's network; the version before has none.
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    yield _patch("Namespace", "berth-system", [_change("add", "/metadata/labels", labels)])
    host, port = place.api_server
    server = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
    ports = place.ports
    listeners = {
        "BERTH_HEALTH": f"http://0.0.0.0:{ports['health']}/healthz",
        "BERTH_METRICS_PORT": str(ports["metrics"]),
        "BERTH_DEBUG_PORT": str(ports["debug"]),
    }
    yield _patch(
        "Deployment",
        "berth-operator",
        [
            *_own_network({**server, **listeners}, [ports["health"], ports["metrics"]]),
            *_alone(),
        ],
    )
    yield _patch(
        "Deployment",
        "berth-webhook",
        [
            _change("add", f"{CONTAINER}/env", []),
            *_own_network({**server, "BERTH_WEBHOOK_PORT": str(ports["webhook"])}, [ports["webhook"]]),
            *_alone(),
        ],
    )
    yield _patch(
        "DaemonSet",
        "berth-agent",
        [
            *_own_network({**server, **place.agent_variables}, [ports["agent"]]),
            _change("add", f"{CONTAINER}/args/-", f"--metrics-port={ports['agent']}"),
            *(change for number, folder in enumerate(place.folders) for change in _mounted(f"cards-{number}", folder)),
        ],
    )


def _own_network(variables: Mapping[str, str], ports: Sequence[int]) -> Iterator[dict[str, Any]]:
    yield _change("add", "/spec/template/spec/hostNetwork", True)  # noqa: FBT003 - a value
    for name, value in variables.items():
        yield _change("add", f"{CONTAINER}/env/-", {"name": name, "value": value})
    for number, port in enumerate(ports):
        yield _change("replace", f"{CONTAINER}/ports/{number}/containerPort", port)


def _alone() -> Iterator[dict[str, Any]]:
    """Yield the changes of a Deployment of one pod, whose successor needs its ports."""
    yield _change("replace", "/spec/replicas", 1)
    yield _change("add", "/spec/strategy", {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})


def _mounted(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    yield _change("add", f"{VOLUMES}/-", {"name": name, "hostPath": {"path": str(folder), "type": "Directory"}})
    yield _change("add", f"{CONTAINER}/volumeMounts/-", {"name": name, "mountPath": str(folder), "readOnly": True})


def _change(operation: str, path: str, value: object) -> dict[str, Any]:
    return {"op": operation, "path": path, "value": value}


def _patch(kind: str, name: str, changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"target": {"kind": kind, "name": name}, "patch": yaml.safe_dump(list(changes))}
