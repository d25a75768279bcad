"""Controllers of training and serving jobs in a cluster: KubeRay, and Kubeflow's MPI operator.

controllers.start(cluster, training.CONTROLLERS) cluster.api.apply(…)  # then RayClusters, RayJobs and MPIJobs
"""

from typing import Any, Final

from devcluster.additions.controllers import Controller

Manifest = dict[str, Any]


def _template(container: str) -> Manifest:
    return {"template": {"spec": {"containers": [{"name": container, "image": "none"}]}}}


KUBERAY: Final = Controller(
    program="kuberay",
    namespace="kuberay-system",
    account="kuberay-operator",
    folders=("config/default",),
    is_placed=False,
    arguments=("--metrics-addr=0", "--health-probe-bind-address=0", "--enable-leader-election=false"),
    probe={
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "probe"},
        "spec": {"headGroupSpec": {"rayStartParams": {}, **_template("head")}},
    },
)
MPI_OPERATOR: Final = Controller(
    program="mpi-operator",
    namespace="mpi-operator",
    account="mpi-operator",
    folders=("manifests/overlays/standalone",),
    # It also serves its health at port 8080 of this machine, which no argument changes.
    arguments=("--kube-api-qps=50", "--kube-api-burst=100"),
    probe={
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "probe"},
        "spec": {"mpiReplicaSpecs": {"Launcher": {"replicas": 1, **_template("launcher")}}},
    },
)
CONTROLLERS: Final = (KUBERAY, MPI_OPERATOR)
