"""The settings, by flag (`--lease x`) or environment variable (`BERTH_LEASE=x`). Flags win.

The scheduler names, the node selector and the lease delimit an instance. Several instances with different values share
a cluster without affecting each other.
"""

import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit
from uuid import uuid4

from pydantic import AfterValidator, Field, IPvAnyAddress, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from berth_api import names, words
from berth_api.admission.routing import DEFAULT
from berth_api.request.kinds import checked_gpu_vendors, checked_nics
from berth_api.values import selectors
from berth_base.allowed import Allowed
from berth_base.logs import Form, Level
from berth_client import trust
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import injected
from berth_operator.settings import configuration
from berth_operator.settings.configuration import SCHEDULER_NAME, Configuration, ResourceNames, SchedulerNames
from berth_operator.state.objects.genius_priority import FORM, PriorityLimits, read_limits


def _check_url(url: str) -> str:
    """Check the URL of the probe; kopf reads it only seconds after the start."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme == "http" and parts.port != 0 and parts.hostname and parts.path.startswith("/")
    except ValueError:
        valid = False
    if url and not valid:
        raise ValueError("must be http://address:port/path, or empty")
    return url


def _check_prometheus(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.port != 0 and parts.hostname
    except ValueError:
        valid = False
    if url and (not valid or parts.username or parts.query or parts.fragment):
        raise ValueError("must be http://host:port/path or https://host:port/path, without user and query, or empty")
    return url


def _check_selector(text: str) -> str:
    """Check the label selector; the API server would refuse each list of Nodes with it."""
    selectors.parse(text)
    return text


def _check_authority(file: Path | None) -> Path | None:
    """Check that the file has certificates; they are used only once this replica leads."""
    try:
        trust.client_context(file)
    except OSError as error:
        raise ValueError(f"{file}: no certificates: {error.strerror or error}") from error
    return file


def _check_priorities(text: str) -> str:
    """Check the list now, because it is used only once this replica leads."""
    read_limits(text)
    return text


def _identity(settings: Mapping[str, Any]) -> str:
    """Return the host name with the pod's UID, which survives a restart of its container, or with a random UUID."""
    return f"{socket.gethostname()}_{settings.get('pod', '').rpartition('/')[2] or uuid4()}"


class Settings(BaseSettings):
    """The Berth operator: decides which pod gets which devices, and binds it.

    The first argument `simulate`, `advise`, `snapshot` or `defragment` runs a command (`berth-operator simulate
    --help`), and `webhook` runs the webhook (`berth-operator webhook --help`). `--version` prints the version.
    """

    model_config = SettingsConfigDict(
        env_prefix="BERTH_",
        cli_parse_args=True,
        cli_prog_name="berth-operator",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        use_attribute_docstrings=True,
        frozen=True,
    )

    kubeconfig: Path | None = None
    """Kubeconfig file. Default: the pod's service account."""

    config: Path | None = None
    """BerthSchedulerConfiguration file (docs/configuration.md), reloaded when it changes. Without a file, each of
    `scheduler_names` has a default profile."""

    scheduler_names: SchedulerNames = names.SCHEDULER
    """The `schedulerName`s of the pods to schedule, separated by commas. Not allowed with `config`: its profiles name
    them."""

    require_injection: bool = True
    """Whether to schedule a pod only if each of its containers will see only its own devices (docs/containers.md). Not
    allowed with `config`: its profiles set this."""

    node_selector: Annotated[str, AfterValidator(_check_selector)] = ""
    """Label selector of the nodes to use; empty for all."""

    namespace: str = "berth-system"
    """Namespace of the LeaderLease."""

    pod: Annotated[str, Field(pattern=r"^([^/]+/[^/]+/[^/]+)?$"), Allowed("namespace/name/UID, or empty")] = ""
    """The operator's own pod (namespace/name/UID), for Events about the process itself. Empty: no such Events."""

    lease: str = "berth-operator"
    """Name of the LeaderLease by which replicas elect a leader. The fence compares Bindings with its term
    (docs/decisions/0002-fencing.md)."""

    require_fence: bool = False
    """Whether a leader decides only once the API server refuses Bindings of other terms. If false, a leader that finds
    no fence logs a warning and continues. `manifests/base` installs the fence and sets this."""

    lease_duration: Annotated[int, Field(ge=2, le=300)] = 15
    """Seconds after which another replica may take a LeaderLease that is not renewed."""

    renew_deadline: Annotated[float, Field(gt=0)] = 10.0
    """Seconds after which a leader that cannot renew its LeaderLease stops. Less than `lease_duration`, so that it
    stops before another replica leads."""

    retry_period: Annotated[float, Field(gt=0)] = 2.0
    """Seconds between two renewals."""

    takeover_pause: Annotated[float, Field(ge=0)] = 1.0
    """Seconds between becoming leader and the first list of pods. Gives every API server time to learn the new term."""

    agent_namespace: str = names.LEASE_NAMESPACE
    """Namespace of the agents' Leases."""

    agent_grace: Annotated[float, Field(ge=0)] = 10.0
    """Seconds after an agent's Lease has expired for which the agent still counts as alive: one missed renewal."""

    node_startup_timeout: Annotated[float, Field(ge=0, le=3600)] = 600.0
    """Seconds after a Node is created for which its devices are awaited. Pods that may fit there are not
    `Unschedulable` meanwhile, so that autoscalers add no other node for them (docs/autoscalers.md). 0: never."""

    genius_priorities: Annotated[
        str,
        Field(pattern=f"^({FORM}(,{FORM})*)?$"),
        Allowed("NAMESPACE=NUMBER, separated by commas without spaces, such as team-a=10,*=5"),
        AfterValidator(_check_priorities),
    ] = ""
    """The highest `genius/priority` that the pods of each namespace may have, such as `team-a=10,*=5`; `*` stands for
    all others. A namespace that is not listed has 0. Values below 0 are always allowed."""

    memory_units: Annotated[str, AfterValidator(words.checked_units)] = ""
    """Units of memory in resources of other systems, if you changed the unit there: `NAME=1Gi`, separated by commas
    (docs/reference/words.md)."""

    nic_resources: Annotated[str, AfterValidator(checked_nics)] = ""
    """Resources of other device plugins that are RDMA NICs, with the hundredths of a NIC that one of them takes:
    `NAME=HUNDREDTHS`, separated by commas, such as `nvidia.com/hostdev=100,rdma/hca_shared=1` (docs/tasks/rdma.md)."""

    gpu_vendors: Annotated[str, AfterValidator(checked_gpu_vendors)] = "nvidia"
    """Vendors whose GPUs pods get with `kubernetes.io/gpu` and Berth's other resources of GPUs, separated by commas, as
    in the label `node.koordinator.sh/gpu-vendor`; `*` for all (docs/amd.md#which-pods-get-which-cards). Plug-ins add
    their own vendors."""

    charge_foreign: bool = True
    """Whether to keep pods off cards that processes outside Kubernetes use, as agents report them."""

    charge_unheld: bool = False
    """Whether to keep other pods off a card that a pod uses without holding it, as agents report it. With this, any pod
    that reaches a card without requesting it keeps the card from all other pods (docs/containers.md)."""

    trusted_schedulers: Annotated[
        str,
        Field(pattern=f"^({SCHEDULER_NAME}(,{SCHEDULER_NAME})*)?$"),
        Allowed("names of schedulers, separated by commas without spaces, or empty"),
    ] = ""
    """Other schedulers whose allocation annotations are trusted, such as koord-scheduler, separated by commas. Empty:
    none. The policy in manifests/base/protection.yaml must list their accounts (docs/write-protection.md)."""

    routing: Literal["own", "words", "devices"] = "own"
    """Which pods the policies or the webhook route in namespaces without the label `berth.dev/routing`. Kueue's
    Workloads are read by it (docs/admission.md)."""

    routed_resources: ResourceNames = ""
    """Resources besides NVIDIA's that route pods where the label is `devices`, separated by commas."""

    node_rate: Annotated[float, Field(gt=0)] = 100.0
    """Writes to Nodes per second. Until a new node shows its devices, pods wait for it."""

    status_rate: Annotated[float, Field(gt=0)] = 20.0
    """Writes of other statuses per second. Binds do not wait for them."""

    volume_timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds to wait for a pod's PersistentVolumeClaims to be bound before the pod is decided again. The default is
    kube-scheduler's."""

    gang_timeout: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that a gang may stay partly bound before its bound members are deleted, unless its PodGroup sets a
    timeout."""

    evictions_per_minute: Annotated[float, Field(ge=0, le=600)] = 0.0
    """Pods per minute to evict from cards that need a reset or a reboot. 0: none."""

    defragment: Annotated[int, Field(ge=0, le=16)] = 0
    """How many pods may be moved at once so that another pod fits. Only pods that allow it are moved
    (docs/defragmentation.md). 0: none."""

    defragment_after: Annotated[float, Field(ge=0)] = 120.0
    """Seconds that a pod waits before others are moved for it. 0: only on request, by the command `defragment`."""

    defragment_min_age: Annotated[float, Field(ge=0)] = 600.0
    """Minimum age in seconds of a pod that is moved, so that no pod is moved again and again."""

    taint_own_pools: bool = False
    """Whether to keep other schedulers off the pools in the configuration's `claims`, by DeviceTaintRules
    (docs/claims.md). Requires the component `claims`."""

    kueue: bool = False
    """Whether to decide Kueue's AdmissionChecks with the controllerName berth.dev/fits-devices (docs/kueue.md).
    Requires the component `kueue`."""

    grove_gangs: bool = False
    """Whether to read Grove's PodGangs, whose pods then start together (docs/gangs-of-controllers.md). Requires the
    component `gangs-grove`."""

    jobset_gangs: bool = False
    """Whether to read JobSets, whose pods then start together (docs/gangs-of-controllers.md). Requires the component
    `gangs-jobset`."""

    kubeflow_gangs: bool = False
    """Whether to read the jobs of Kubeflow's training operator and MPI operator, whose pods then start together
    (docs/gangs-of-controllers.md). Requires the component `gangs-kubeflow`."""

    lws_gangs: bool = False
    """Whether to read LeaderWorkerSets, to place leaders only where their workers will fit
    (docs/gangs-of-controllers.md). Requires the component `gangs-lws`."""

    ray_gangs: bool = False
    """Whether to read RayClusters, whose pods then start together (docs/gangs-of-controllers.md). Requires the
    component `gangs-ray`."""

    health: Annotated[str, AfterValidator(_check_url)] = "http://0.0.0.0:8080/healthz"
    """URL on which to serve liveness, http://address:port/path. `0.0.0.0` and `[::]` mean all addresses, IPv4 and IPv6.
    Empty: none."""

    metrics_address: IPvAnyAddress = IPv4Address("0.0.0.0")  # noqa: S104 - Prometheus comes from another node
    """Address on which to serve metrics; `0.0.0.0` or `::`: all addresses, IPv4 and IPv6. Except on loopback, clients
    need a bearer token of a user that may get the nonResourceURL `/metrics`."""

    metrics_authentication: bool = True
    """Whether clients of the metrics need that token. If false, anyone who reaches the port can read them."""

    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 8081
    """Port on which to serve metrics for Prometheus; 0 to serve none."""

    metrics_source: Literal["none", "agents", "prometheus"] = "none"
    """Where to read live GPU metrics, for the score `genius` and for memory that Genius' labels request
    (docs/live-metrics.md)."""

    metrics_interval: Annotated[float, Field(ge=1, le=3600)] = 15.0
    """Seconds between two reads of live GPU metrics."""

    metrics_stale_after: Annotated[float, Field(ge=2, le=3600)] = 60.0
    """Seconds after which a measured value is no longer used; at least twice the interval."""

    agent_pods_namespace: str = names.AGENT_SYSTEM
    """Namespace of the agents' pods. They show which nodes have an agent, and `--metrics-source agents` reads their
metrics."""

    agent_metrics_port: Annotated[int, Field(ge=1, le=65535)] = 9405
    """Port on which the agents serve metrics, for `--metrics-source agents`."""

    agent_metrics_token_file: Path | None = None
    """File with a bearer token for the agents' metrics, read again for each refresh. The token is sent by plain HTTP,
    so it should grant nothing else."""

    prometheus_url: Annotated[str, AfterValidator(_check_prometheus)] = ""
    """URL of Prometheus, for `--metrics-source prometheus`; empty to search `prometheus_namespaces`."""

    prometheus_namespaces: Annotated[
        str,
        Field(pattern=r"^([a-z0-9-]{1,63}(,[a-z0-9-]{1,63})*)?$"),
        Allowed("names of namespaces, separated by commas without spaces, or empty"),
    ] = ""
    """Namespaces in which to search for Prometheus' Service, separated by commas. The first namespace that has one
    wins; other namespaces are never searched."""

    prometheus_ca: Annotated[Path | None, AfterValidator(_check_authority)] = None
    """PEM file with the certificate authority of Prometheus. Default: the authorities that the system trusts."""

    prometheus_token_file: Path | None = None
    """File with a bearer token for Prometheus, read again for each query. It is sent by https only."""

    debug_address: IPvAnyAddress = IPv4Address("127.0.0.1")
    """Address on which the debug API listens (docs/debug-api.md). Except on loopback, it requires a bearer token that
    the API server authenticates and authorizes."""

    debug_port: Annotated[int, Field(ge=0, le=65535)] = 10251
    """Port of the debug API; 0 to serve none."""

    debug_certificate: Path | None = None
    """PEM file with the debug API's certificate chain. Without a file it uses plain HTTP, which exposes tokens, too."""

    debug_key: Path | None = None
    """PEM file with the certificate's key. Default: the certificate's file."""

    extender_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the HTTP extender for kube-scheduler (docs/extender.md); 0 to serve none."""

    extender_address: IPvAnyAddress = IPv4Address("127.0.0.1")
    """Address on which the extender listens. Except on loopback, it requires a certificate of its own and client
    certificates."""

    extender_certificate: Path | None = None
    """PEM file with the extender's certificate chain. Without a file it uses plain HTTP."""

    extender_key: Path | None = None
    """PEM file with the certificate's key. Default: the certificate's file."""

    extender_client_ca: Path | None = None
    """PEM file with the authorities of client certificates. Other clients are refused."""

    extender_clients: str = ""
    """Common names of client certificates that may call the extender, separated by commas. Empty: all that these
    authorities have signed."""

    extender_schedulers: SchedulerNames = DEFAULT
    """The `schedulerName`s of the pods that the extender decides about, separated by commas. A profile with such a name
    in `config` applies only to the extender."""

    extender_nodes: Annotated[int, Field(ge=1, le=16)] = 1
    """Maximum number of nodes in the answer to filter. Except for the best node, they are kept only until another pod
    needs them."""

    extender_timeout: Annotated[float, Field(gt=0, le=300)] = 5.0
    """kube-scheduler's `httpTimeout` in seconds. A bind is answered within 80 % of it."""

    extender_score: Literal["policy", "free-cards"] = "policy"
    """How prioritize scores nodes: `policy`, by the profile's policy; `free-cards`, by the number of free GPUs of the
    requested model, like nvidia-gpu-scheduler."""

    extender_service: Annotated[
        str, Field(pattern=r"^([a-z0-9-]+/[a-z0-9-]+)?$"), Allowed("namespace/name of a Service, or empty")
    ] = ""
    """Service without a selector (namespace/name). The leader writes its EndpointSlice, so that the Service reaches
    only the leader. Empty: none."""

    visibility_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the visibility API (docs/visibility.md); other replicas reach it at `pod_ip`. 0: none."""

    visibility_address: IPvAnyAddress = IPv4Address("0.0.0.0")  # noqa: S104 - the API server calls from anywhere
    """Address on which the visibility API listens; `0.0.0.0` or `::`: all addresses, IPv4 and IPv6."""

    visibility_host: Annotated[
        str, Field(default_factory=lambda settings: f"berth-visibility.{settings.get('namespace', '')}.svc")
    ]
    """Host name by which the API server calls the visibility API, for its certificate. Default: the name of the Service
    `berth-visibility` in `namespace`."""

    visibility_service: str = "berth-visibility"
    """Name of the Service in `namespace` by which the API server reaches the visibility API."""

    visibility_service_port: Annotated[int, Field(ge=1, le=65535)] = 443
    """Port of that Service."""

    visibility_secret: str = "berth-visibility"  # noqa: S105 - a name
    """Name of the Secret through which replicas share the certificate of the visibility API."""

    visibility_lifetime: Annotated[float, Field(ge=3)] = 90 * 86400.0
    """Seconds for which that certificate is valid. It is renewed when a third of them is left."""

    visibility_period: Annotated[float, Field(gt=0)] = 60.0
    """Seconds between two checks for a new certificate and for new authorities of the API server. Whether the
    APIService exists is checked as often, but at least every ten seconds."""

    visibility_max_watches: Annotated[int, Field(ge=4)] = 400
    """Maximum number of watches of the visibility API that a replica serves at once. One user gets at most a quarter of
    them."""

    pod_ip: str = ""
    """The address of the operator's own pod, for the EndpointSlice and the visibility API."""

    log_format: Form = "json"
    """Format of log lines: key=value or JSON."""

    log_level: Level = "info"
    """Lowest severity that is logged. Libraries log warnings and above."""

    identity: Annotated[str, Field(default_factory=_identity)]
    """This process's name in the LeaderLease. No two running processes may share it. By default it contains the pod's
    UID: a restarted container finds its own name, and does not wait until its last term has expired."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.config is not None and "scheduler_names" in self.model_fields_set:
            raise ValueError("--scheduler-names and --config exclude each other: the file names the schedulers")
        if self.config is not None and "require_injection" in self.model_fields_set:
            named = f"a profile switches off the filter {injected.NAME}"
            raise ValueError(f"--require-injection and --config exclude each other: {named}")
        return self

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        if self.metrics_source == "prometheus" and bool(self.prometheus_url) == bool(self.prometheus_namespaces):
            raise ValueError(
                "--metrics-source prometheus: set --prometheus-url or --prometheus-namespaces, and not both"
            )
        if self.prometheus_token_file is not None and self.prometheus_url.startswith("http://"):
            raise ValueError(f"--prometheus-token-file: {self.prometheus_url} would expose the token; use https")
        if self.metrics_stale_after < 2 * self.metrics_interval:
            raise ValueError(
                f"--metrics-stale-after {self.metrics_stale_after:g}: must be at least twice --metrics-interval "
                f"{self.metrics_interval:g}"
            )
        return self

    @model_validator(mode="after")
    def _check_election(self) -> Self:
        """Check what the election requires: a leader stops before another one leads, and can retry before it stops."""
        if self.lease_duration <= self.renew_deadline:
            raise ValueError(
                f"--lease-duration {self.lease_duration}: must be greater than --renew-deadline {self.renew_deadline:g}"
            )
        if self.renew_deadline <= 2 * self.retry_period:
            raise ValueError(
                f"--renew-deadline {self.renew_deadline:g}: must be greater than twice --retry-period "
                f"{self.retry_period:g}"
            )
        return self

    @model_validator(mode="after")
    def _check_extender(self) -> Self:
        """Check that only kube-scheduler can call the extender, and that no pod has two schedulers."""
        if not self.extender_port:
            return self
        if not self.extender_address.is_loopback and not (self.extender_certificate and self.extender_client_ca):
            raise ValueError(
                f"--extender-address {self.extender_address}: other machines can reach it, so --extender-certificate "
                "and --extender-client-ca are required"
            )
        if self.extender_client_ca and not self.extender_certificate:
            raise ValueError("--extender-client-ca requires --extender-certificate: clients authenticate in TLS")
        if self.extender_clients and not self.extender_client_ca:
            raise ValueError("--extender-clients requires --extender-client-ca, which checks the certificates")
        if self.extender_service:
            _check_address(self.pod_ip, "--extender-service")
        if self.config is None and (both := self.extended & {*self.scheduler_names.split(",")}):
            raise ValueError(
                f"--extender-schedulers {', '.join(sorted(both))}: Berth schedules these pods itself; remove them here "
                "or from --scheduler-names"
            )
        return self

    @model_validator(mode="after")
    def _check_visibility(self) -> Self:
        """Check that other replicas can reach this one."""
        if self.visibility_port:
            _check_address(self.pod_ip, "--visibility-port")
        return self

    @property
    def extended(self) -> frozenset[str]:
        """Return the scheduler names whose pods the extender takes; empty if there is no extender."""
        return frozenset(self.extender_schedulers.split(",")) if self.extender_port else frozenset()

    @property
    def own_pod_name(self) -> str:
        """Return the name of the operator's own pod; empty if it does not know it."""
        return self.pod.split("/")[1] if self.pod else ""

    @property
    def visibility_endpoint(self) -> str:
        """Return where other replicas reach the visibility API of this one; empty if it serves none."""
        if not self.visibility_port:
            return ""
        host = f"[{self.pod_ip}]" if ":" in self.pod_ip else self.pod_ip
        return f"{host}:{self.visibility_port}"

    @property
    def priorities(self) -> PriorityLimits:
        """Return how high pods may set `genius/priority`."""
        return read_limits(self.genius_priorities)

    @property
    def trusted(self) -> frozenset[str]:
        """Return the other schedulers whose allocations are trusted."""
        return frozenset(filter(None, self.trusted_schedulers.split(",")))

    @property
    def gang_owners(self) -> frozenset[str]:
        """Return the API groups of the controllers that are read for their gangs."""
        groups = {
            "jobset.x-k8s.io": self.jobset_gangs,
            "kubeflow.org": self.kubeflow_gangs,
            "leaderworkerset.x-k8s.io": self.lws_gangs,
            "ray.io": self.ray_gangs,
            "scheduler.grove.io": self.grove_gangs,
        }
        return frozenset(group for group, is_read in groups.items() if is_read)

    @property
    def prometheus_namespace_names(self) -> tuple[str, ...]:
        """Return the namespaces whose Services are searched for Prometheus."""
        return tuple(filter(None, self.prometheus_namespaces.split(",")))

    def configuration(self) -> Configuration:
        """Read the configuration file, or return default profiles if there is none.

        Raises:
            ConfigurationError: the file is missing or invalid.
        """
        if self.config is not None:
            return configuration.load(self.config)
        return Configuration(policies=dict.fromkeys(self.scheduler_names.split(","), self.default_policy))

    @property
    def default_policy(self) -> Policy:
        """Return the policy of scheduler names without a profile."""
        return Policy(switched_off=frozenset() if self.require_injection else frozenset({injected.NAME}))


def _check_address(text: str, option: str) -> None:
    try:
        ip_address(text)
    except ValueError as error:
        raise ValueError(f'--pod-ip "{text}": {option} requires the address of the operator\'s pod') from error
