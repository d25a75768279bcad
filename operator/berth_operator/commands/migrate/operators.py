"""Kinds of other projects whose controllers create pods: where their pod templates are, and what is set by hand."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Object = dict[str, Any]
Path = tuple[str | int, ...]
"""Steps into a document: names, and indices of lists."""
EACH: Final = "*"
"""A step in `CustomKind.templates`: each item of a list, or each value of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomKind:
    """A kind of a custom resource."""

    templates: tuple[tuple[str, ...], ...] = ()
    """Where its pod templates are. The pods of all templates belong together."""
    scheduler: tuple[str, ...] = ()
    """Where the kind itself names the scheduler of its pods; empty if only its templates do."""
    by_hand: str = ""
    """What to write in place of pod templates, where the kind has none; `{scheduler}` is Berth's name."""


def _of_roles(name: str) -> CustomKind:
    return CustomKind(templates=(("spec", name, EACH, "template"),))


def _of_ray(*path: str) -> CustomKind:
    head, workers = ("headGroupSpec", "template"), ("workerGroupSpecs", EACH, "template")
    return CustomKind(templates=((*path, *head), (*path, *workers)))


_OF_JOB_SET: Final = ("spec", "replicatedJobs", EACH, "template", "spec", "template")
_RUNTIME: Final = CustomKind(templates=(("spec", "template", *_OF_JOB_SET),))

CUSTOM_KINDS: Final[Mapping[tuple[str, str], CustomKind]] = {
    ("ray.io", "RayCluster"): _of_ray("spec"),
    ("ray.io", "RayJob"): _of_ray("spec", "rayClusterSpec"),
    ("ray.io", "RayService"): _of_ray("spec", "rayClusterConfig"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): CustomKind(
        templates=tuple(("spec", "leaderWorkerTemplate", name) for name in ("leaderTemplate", "workerTemplate"))
    ),
    ("kubeflow.org", "PyTorchJob"): _of_roles("pytorchReplicaSpecs"),
    ("kubeflow.org", "TFJob"): _of_roles("tfReplicaSpecs"),
    ("kubeflow.org", "MPIJob"): _of_roles("mpiReplicaSpecs"),
    ("kubeflow.org", "JAXJob"): _of_roles("jaxReplicaSpecs"),
    ("kubeflow.org", "XGBoostJob"): _of_roles("xgbReplicaSpecs"),
    ("kubeflow.org", "PaddleJob"): _of_roles("paddleReplicaSpecs"),
    ("kubeflow.org", "Notebook"): CustomKind(templates=(("spec", "template"),)),
    ("jobset.x-k8s.io", "JobSet"): CustomKind(templates=(_OF_JOB_SET,)),
    ("trainer.kubeflow.org", "TrainingRuntime"): _RUNTIME,
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): _RUNTIME,
    ("batch.volcano.sh", "Job"): CustomKind(
        templates=(("spec", "tasks", EACH, "template"),), scheduler=("spec", "schedulerName")
    ),
    ("trainer.kubeflow.org", "TrainJob"): CustomKind(
        by_hand="its pods come from the runtime that spec.runtimeRef names; rewrite the TrainingRuntime or "
        "ClusterTrainingRuntime, and write spec.trainer.resourcesPerNode in Berth's words"
    ),
    ("serving.kserve.io", "InferenceService"): CustomKind(
        by_hand="write spec.predictor.schedulerName: {scheduler}, and the resources of the model or the containers of "
        "spec.predictor in Berth's words"
    ),
    ("argoproj.io", "Workflow"): CustomKind(
        by_hand="write spec.schedulerName: {scheduler}, and the resources of its templates in Berth's words"
    ),
    ("sparkoperator.k8s.io", "SparkApplication"): CustomKind(
        by_hand="write spark.kubernetes.scheduler.name: {scheduler} in spec.sparkConf, and the names of "
        "spec.driver.gpu and spec.executor.gpu in Berth's words"
    ),
}
"""(API group, kind) -> what is known of it."""


def templates(body: Object, kind: CustomKind) -> Iterator[tuple[Path, Object]]:
    """Yield each pod template of a document that is there, with its path."""
    for path in kind.templates:
        yield from _at(body, path, ())


def _at(value: Any, steps: tuple[str, ...], path: Path) -> Iterator[tuple[Path, Object]]:
    if not steps:
        if isinstance(value, dict) and isinstance(value.get("spec"), dict):
            yield path, value
        return
    first, *rest = steps
    items: Mapping[str | int, Any] = {}
    if first != EACH:
        items = {first: value.get(first)} if isinstance(value, dict) else {}
    elif isinstance(value, dict):
        items = value
    elif isinstance(value, list):
        items = dict(enumerate(value))
    for step, item in items.items():
        yield from _at(item, tuple(rest), (*path, step))


def with_value(body: Any, path: Path, value: Any) -> Any:
    """Return a document with another value at a path."""
    if not path:
        return value
    step, *rest = path
    if isinstance(step, int):
        return [with_value(item, tuple(rest), value) if at == step else item for at, item in enumerate(body)]
    return {**body, step: with_value(body.get(step), tuple(rest), value)}
