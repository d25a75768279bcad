"""Kueue in a cluster, with the controllers whose workloads it suspends: JobSet, LeaderWorkerSet, Kubeflow's trainer.

kueue.start(cluster, neighbours=True) cluster.api.apply(…)  # then ResourceFlavors, ClusterQueues and LocalQueues

Kueue uses the Configuration in `manifests/components/kueue`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster.additions import controllers, installation
from devcluster.additions.controllers import Controller
from devcluster.control_plane.cluster import Cluster

COMPONENT: Final = installation.ROOT / "manifests/components/kueue"
CONFIGURATION: Final = COMPONENT / "configuration.yaml"
FRAMEWORKS: Final = (
    "batch/job",
    "pod",
    "deployment",
    "statefulset",
    "jobset.x-k8s.io/jobset",
    "leaderworkerset.x-k8s.io/leaderworkerset",
    "trainer.kubeflow.org/trainjob",
)
"""What Kueue manages; it waits for definitions that are not there."""

Manifest = dict[str, Any]


def _configuration(group: str, version: str = "v1alpha1", **fields: Any) -> Manifest:
    return {"apiVersion": f"config.{group}/{version}", "kind": "Configuration", **fields}


def _pod(**metadata: Any) -> Manifest:
    return {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}}


WITHOUT_CERTIFICATES: Final[Manifest] = {"internalCertManagement": {"enable": False}}
"""They would be written to a folder that all clusters of this machine share."""
JOB_SET: Final = Controller(
    program="jobset",
    namespace="jobset-system",
    account="jobset-controller-manager",
    folders=("config/default",),
    configuration=_configuration("jobset.x-k8s.io", **WITHOUT_CERTIFICATES),
    probe={
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "probe"},
        "spec": {"replicatedJobs": [{"name": "probe", "template": {"spec": {"template": _pod()}}}]},
    },
)
LEADER_WORKER_SET: Final = Controller(
    program="lws",
    namespace="lws-system",
    account="lws-controller-manager",
    folders=("config/default",),
    configuration=_configuration(
        "lws.x-k8s.io", **WITHOUT_CERTIFICATES, gangSchedulingManagement={"schedulerProvider": "volcano"}
    ),
    addition=Path(__file__).with_name("lws.yaml"),
    probe={
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "probe"},
        "spec": {"leaderWorkerTemplate": {"workerTemplate": _pod()}},
    },
)
TRAINER: Final = Controller(
    program="trainer",
    namespace="kubeflow-system",
    account="kubeflow-trainer-controller-manager",
    folders=tuple(f"manifests/base/{name}" for name in ("crds", "rbac", "manager", "webhook")),
    is_placed=False,
    names_folder=False,
    configuration=_configuration("trainer.kubeflow.org", certManagement={"enable": False}),
    probe={  # refused, as there is no such runtime
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "probe"},
        "spec": {"runtimeRef": {"name": "probe"}},
    },
)
NEIGHBOURS: Final = (JOB_SET, LEADER_WORKER_SET, TRAINER)


def apply_component(cluster: Cluster) -> None:
    """Apply the policies and rights of the component `kueue`; the operator's flag is `--kueue`."""
    for name in ("policy", "rbac", "checks"):
        for document in installation.documents(COMPONENT / f"{name}.yaml"):
            cluster.api.apply(document)


def start(cluster: Cluster, *, neighbours: bool = False, gates: Sequence[str] = (), **fields: Any) -> int:
    """Start Kueue, and the others where they are wanted; return its process id when its webhooks answer.

    Args:
        cluster: the cluster.
        neighbours: whether to start the others, too.
        gates: Kueue's feature gates to switch on.
        fields: fields of Kueue's Configuration in addition to the shipped ones.

    Raises:
        WaitError: one does not answer in time; its log has the reason.
    """
    return controllers.start(cluster, [*(NEIGHBOURS if neighbours else ()), controller(gates=gates, **fields)])[-1]


def controller(*, gates: Sequence[str] = (), **fields: Any) -> Controller:
    """Return Kueue with the shipped Configuration, except for what differs on one machine, and for `fields`."""
    shipped: Manifest = yaml.safe_load(CONFIGURATION.read_text())
    own = {
        "namespace": "kueue-system",
        "featureGates": {"VisibilityOnDemand": False, **dict.fromkeys(gates, True)},
        "clientConnection": {"qps": 50, "burst": 100},  # as it is shipped with Kueue
        "integrations": {"frameworks": list(FRAMEWORKS)},
    }
    return Controller(
        program="kueue",
        namespace="kueue-system",
        account="kueue-controller-manager",
        folders=("config/default",),
        configuration={**shipped, **own, **fields},
        own_certificate="kueue-webhook-server-cert",
        probe={
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ResourceFlavor",
            "metadata": {"name": "probe"},
            "spec": {},
        },
    )
