"""What is meant for the workload in each file of `manifests/examples/operators`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[2] / "manifests" / "examples" / "operators"
BERTH: Final = "berth-scheduler"
VOLCANO: Final = "volcano"
YUNIKORN: Final = "yunikorn"
KUBERNETES: Final = "default-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is meant for one workload."""

    cards: Mapping[str, tuple[int, int]]
    """For each pattern of pods' names: how many pods there are, and how many devices each gets."""
    controller: str = ""
    """The program that creates the pods; empty if these are Kubernetes' own controllers, or the user."""
    resource: str = "nvidia.com/gpu"
    """The resource that the pods request."""
    scheduler: str = BERTH
    """The scheduler of the pods with devices."""
    is_gang: bool = False
    """Whether all pods with devices start together or not at all."""
    nics: int = 0
    """How many RDMA NICs each pod with GPUs gets. Each is under the PCIe switch of one of the GPUs."""

    @property
    def devices(self) -> int:
        """How many devices all pods get."""
        return sum(pods * cards for pods, cards in self.cards.values())


WORKLOADS: Final[Mapping[str, Workload]] = {
    "airflow": Workload(cards={"embed-*": (1, 1)}),
    "amd": Workload(cards={"rocm": (1, 2)}, resource="amd.com/gpu", scheduler=KUBERNETES),
    "compute-domain": Workload(cards={"compute-domain-*": (2, 4)}, scheduler=KUBERNETES),
    "dynamo": Workload(
        cards={"dynamo-0-frontend-*": (1, 0), "dynamo-0-vllm*worker-*": (3, 2)},
        controller="dynamo",
        is_gang=True,
    ),
    "dynamo-gb200": Workload(
        cards={
            "dynamo-gb200-0-frontend-*": (1, 0),
            "dynamo-gb200-0-prefill-*": (1, 4),
            "dynamo-gb200-0-decode-*": (2, 4),
        },
        controller="dynamo",
        scheduler=KUBERNETES,
    ),
    "habana": Workload(cards={"gaudi": (1, 8)}, resource="habana.ai/gaudi", scheduler=KUBERNETES),
    "inferenceservice": Workload(cards={"llama-predictor-*": (1, 1)}, controller="kserve"),
    "intel": Workload(cards={"openvino": (1, 1)}, resource="gpu.intel.com/xe", scheduler=KUBERNETES),
    "jobset": Workload(
        cards={"jobset-driver-*": (1, 0), "jobset-workers-*": (2, 4)}, controller="jobset", is_gang=True
    ),
    "jupyterhub": Workload(cards={"jupyter-ada": (1, 1)}),
    "kueue-pod-group": Workload(cards={"group-*": (2, 2)}, controller="kueue", is_gang=True),
    "leaderworkerset-vllm": Workload(cards={"vllm-0*": (2, 8)}, controller="lws", is_gang=True),
    "llm-d": Workload(cards={"llm-d-prefill-*": (2, 1), "llm-d-decode-*": (1, 4)}),
    "llm-d-dranet": Workload(cards={"llm-d-dranet-*": (1, 2)}, scheduler=KUBERNETES),
    "mpijob": Workload(
        cards={"mpi-launcher*": (1, 0), "mpi-worker-*": (2, 8)}, controller="mpi-operator", is_gang=True
    ),
    "nccl-tests": Workload(
        cards={"nccl-tests-launcher*": (1, 0), "nccl-tests-worker-*": (2, 2)},
        controller="mpi-operator",
        nics=1,
    ),
    "nimservice": Workload(cards={"llama-nim-*": (1, 1)}, controller="nim-operator"),
    "notebook": Workload(cards={"notebook-0": (1, 1)}, controller="notebook-controller"),
    "pytorchjob": Workload(
        cards={"pytorch-master-0": (1, 2), "pytorch-worker-*": (3, 2)}, controller="training-operator", is_gang=True
    ),
    "raycluster": Workload(
        cards={"ray-vllm-head-*": (1, 0), "ray-vllm-gpu-workers-*": (2, 4)}, controller="kuberay", is_gang=True
    ),
    "rayjob": Workload(
        cards={"ray-train-*-head-*": (1, 0), "ray-train-*-workers-*": (3, 1)}, controller="kuberay", is_gang=True
    ),
    "slurm-bridge": Workload(cards={"slurm-bridge-*": (2, 1)}),
    "sparkapplication": Workload(cards={"rapids-driver": (1, 0), "rapids-*-exec-*": (2, 1)}, controller="spark"),
    "sparkapplication-yunikorn": Workload(
        cards={"spark-yunikorn-driver": (1, 0), "spark-yunikorn-*-exec-*": (2, 1)},
        controller="spark",
        scheduler=YUNIKORN,
    ),
    "trainjob": Workload(cards={"torch-train-node-*": (4, 1)}, controller="trainer", is_gang=True),
    "triton": Workload(cards={"triton-*": (2, 1)}),
    "volcano-job": Workload(cards={"vcjob-worker-*": (3, 2)}, controller="volcano", scheduler=VOLCANO, is_gang=True),
    "workflow": Workload(cards={"evaluate-*": (2, 1)}, controller="argo"),
    "yunikorn": Workload(cards={"yunikorn-*": (2, 2)}, scheduler=YUNIKORN, is_gang=True),
}
"""By the name of the file."""
