"""The command line of each component. Pure functions: nothing is started here.

All components have the same data folder as working directory. They listen on 127.0.0.1 or not at all. They run without
leader election, because there is one of each. The API server creates its own serving certificate on its first start.
The same key signs the ServiceAccount tokens, so no key has to be created beforehand.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster.control_plane import front_proxy

LOOPBACK: Final = "127.0.0.1"
STAGES: Final = Path(__file__).parent / "stages.yaml"
FAKE_NODE: Final = {"kwok.x-k8s.io/node": "fake"}
"""The annotation of nodes that kwok plays; it leaves all others alone."""

CERTIFICATES: Final = "certs"
CERTIFICATE: Final = f"{CERTIFICATES}/apiserver.crt"
KEY: Final = f"{CERTIFICATES}/apiserver.key"
TOKENS: Final = "tokens.csv"
KUBECONFIG: Final = "kubeconfig"
CONTROL_PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
"""All components, in the order of their start."""
ENVIRONMENT: Final = {"GOGC": "400", "GOMEMLIMIT": "4GiB"}
"""Of all components. By default Go's collector takes both of two cores for a second every few thousand writes, in which
everything else is half as fast; memory is not what is short here."""
AGGREGATOR_ROUTING: Final = "--enable-aggregator-routing=true"
"""The flag of an API server that calls webhooks at the addresses of their pods, as there is no kube-proxy."""
ENDPOINT_SLICES: Final = "endpointslice-controller"
POLICY_TYPES: Final = "validatingadmissionpolicy-status-controller"
CHECKS_POLICY_TYPES: Final = f"--controllers={POLICY_TYPES}"
"""Argument of kube-controller-manager that lets it check the expressions of policies against the types of objects."""
UNUSED_CONTROLLERS: Final = (
    ENDPOINT_SLICES,
    POLICY_TYPES,
    "endpointslice-mirroring-controller",
    "persistentvolume-attach-detach-controller",
)

PLUGINS: Final = "--enable-admission-plugins"
"""kube-apiserver's argument for optional admission plug-ins; one is on unless `extra_args` have this argument."""

ExtraArgs = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """What the command lines depend on."""

    programs: Mapping[str, str]
    """Where each program is."""
    etcd_port: int
    api_port: int
    extra_args: ExtraArgs = field(default_factory=dict)
    """More arguments for a component, by its name. They come last, so they win."""

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{LOOPBACK}:{self.api_port}"

    def command(self, name: str) -> list[str]:
        """Return the command line of one component."""
        return [self.programs[name], *_ARGUMENTS[name](self), *self.extra_args.get(name, ())]


def kubeconfig(*, server: str, token: str, ca: str) -> str:
    """Return a kubeconfig's text for one user of the cluster."""
    encoded = base64.b64encode(ca.encode()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [_named("cluster", {"server": server, "certificate-authority-data": encoded})],
        "users": [_named("user", {"token": token})],
        "contexts": [_named("context", {"cluster": "devcluster", "user": "devcluster"})],
        "current-context": "devcluster",
    }
    return yaml.safe_dump(config, sort_keys=False)


def _named(kind: str, content: Mapping[str, str]) -> dict[str, Any]:
    return {"name": "devcluster", kind: dict(content)}


def _etcd(control_plane: ControlPlane) -> list[str]:
    client = f"http://{LOOPBACK}:{control_plane.etcd_port}"
    return [
        "--data-dir=etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        # No other member joins, so any free port will do.
        f"--listen-peer-urls=http://{LOOPBACK}:0",
        # The supervisor holds the port; see there.
        "--socket-reuse-port=true",
        # The data does not outlive the cluster.
        "--unsafe-no-fsync=true",
        "--logger=zap",
        "--log-level=warn",
    ]


def _apiserver(control_plane: ControlPlane) -> list[str]:
    return [
        f"--etcd-servers=http://{LOOPBACK}:{control_plane.etcd_port}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={control_plane.api_port}",
        "--permit-port-sharing=true",
        # Without these two it wants an address of this machine that other machines can reach.
        f"--advertise-address={LOOPBACK}",
        "--endpoint-reconciler-type=none",
        f"--cert-dir={CERTIFICATES}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={KEY}",
        f"--service-account-key-file={KEY}",
        f"--token-auth-file={TOKENS}",
        # For aggregated API servers, under the names that kubeadm uses.
        f"--requestheader-client-ca-file={CERTIFICATES}/{front_proxy.AUTHORITY}",
        f"--requestheader-allowed-names={front_proxy.NAME}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={CERTIFICATES}/{front_proxy.CERTIFICATE}",
        f"--proxy-client-key-file={CERTIFICATES}/{front_proxy.KEY}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        *_admission(control_plane.extra_args.get("kube-apiserver", ())),
        "--profiling=false",
    ]


def _admission(extra: Sequence[str]) -> list[str]:
    """Return the argument for optional admission plug-ins; none if the extra arguments name some."""
    if any(argument.startswith(f"{PLUGINS}=") for argument in extra):
        return []
    # OpenShift has it on. Changing the owners of an object then needs the right to delete it.
    return [f"{PLUGINS}=OwnerReferencesPermissionEnforcement"]


def _controller_manager(control_plane: ControlPlane) -> list[str]:
    return [
        *_client_args(),
        f"--service-account-private-key-file={KEY}",
        f"--root-ca-file={CERTIFICATE}",
        f"--controllers={','.join(['*', *(f'-{name}' for name in _unused_controllers(control_plane))])}",
        # A fake node has no heartbeat: it is as ready as its status says, until a test says otherwise.
        "--node-monitor-grace-period=87600h",
    ]


def _unused_controllers(control_plane: ControlPlane) -> Sequence[str]:
    # No Service routes anywhere and no volume is attached here, but for each node these look at all others. Only an API
    # server that calls the addresses behind Services needs their EndpointSlices. A check of Berth's policies takes
    # seconds, and only warns in their status.
    needed = {
        ENDPOINT_SLICES: AGGREGATOR_ROUTING in control_plane.extra_args.get("kube-apiserver", ()),
        POLICY_TYPES: CHECKS_POLICY_TYPES in control_plane.extra_args.get("kube-controller-manager", ()),
    }
    return [name for name in UNUSED_CONTROLLERS if not needed.get(name)]


def _scheduler(_: ControlPlane) -> list[str]:
    return _client_args()


def _client_args() -> list[str]:
    return [
        f"--kubeconfig={KUBECONFIG}",
        "--leader-elect=false",
        "--secure-port=0",
        # The defaults are meant for a server that is shared.
        "--kube-api-qps=5000",
        "--kube-api-burst=5000",
    ]


def _kwok(_: ControlPlane) -> list[str]:
    selector = ",".join(f"{key}={value}" for key, value in FAKE_NODE.items())
    return [
        f"--kubeconfig={KUBECONFIG}",
        f"--config={STAGES}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={selector}",
        "--node-lease-duration-seconds=0",
        f"--node-ip={LOOPBACK}",
    ]


_ARGUMENTS: Final = {
    "etcd": _etcd,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controller_manager,
    "kube-scheduler": _scheduler,
    "kwok": _kwok,
}
