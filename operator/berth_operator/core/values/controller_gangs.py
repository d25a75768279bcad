"""Gangs of controllers: pods that their controller creates to run together, without a group that a user names.

    of_pod(metadata)                ->  ControllerGang("LeaderWorkerSet group", "vllm-0", 4) | None
    of_pod(metadata)                ->  ControllerGang("RayCluster", "llm", None)
    sizes(OWNED["RayCluster"], raw) ->  {"llm": 5}

`RULES` has one row for each kind of controller. Some controllers write the size of the gang on the pods. For the
others, the size is in the object that owns the pods.

A rule concerns members that exist at the same time. A pod that its controller creates only after another pod runs is no
member of this pod's gang, because both would wait forever.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

Object = Mapping[str, Any]
Values = Mapping[str, str]

_NONE: Final[Values] = {}
_LWS: Final = "leaderworkerset.sigs.k8s.io/"
_KUEUE: Final = "kueue.x-k8s.io/"
_JOBSET: Final = "jobset.sigs.k8s.io/"
_JOBSET_ALPHA: Final = "alpha.jobset.sigs.k8s.io/"
_DIGITS: Final = 6
MAX_SIZE: Final = 10**_DIGITS - 1
"""Members: a larger number is not read, because no cluster has so many pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerGang:
    """The gang of a pod, as its controller defines it."""

    kind: str
    """What messages call it."""
    name: str
    """Its name, unique in the namespace among the gangs of the kind."""
    minimum: int | None
    """The number of members that start together, at least 2; None if the controller's object has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """The objects of a kind that have the sizes of gangs."""

    group: str
    version: str
    plural: str
    sizes: Callable[[str, Object], Mapping[str, int]]
    """Returns the size of each gang, by the object's name and spec."""

    @property
    def path(self) -> str:
        """Return the path at which the API server lists them."""
        return f"/apis/{self.group}/{self.version}/{self.plural}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How to read the gangs of one kind of controller."""

    kind: str
    label: str = ""
    """The label that the pods have. Empty: an object of the kind controls them, and has one gang."""
    members: Callable[[Values, Values], tuple[str, int | None] | None] = lambda _labels, _annotations: None
    """Returns the name of a pod's gang and its size, by labels and annotations; None without a gang."""
    reads: tuple[str, ...] = ()
    """The labels and annotations that `members` reads."""
    owners: Owners | None = None
    """The objects that have the sizes, if the pods have none."""


def of_pod(metadata: Object) -> ControllerGang | None:
    """Return the gang of a pod's controller; None if no rule concerns the pod, or it has no other member."""
    labels = metadata.get("labels") or _NONE
    for rule in _BY_LABEL:
        if rule.label in labels:
            name, minimum = rule.members(labels, metadata.get("annotations") or _NONE) or ("", 0)
            is_gang = minimum is None or minimum > 1
            return ControllerGang(kind=rule.kind, name=name, minimum=minimum) if is_gang else None
    owner = controller(metadata)
    if owner is None or not str(owner.get("apiVersion")).startswith(f"{OWNED[owner['kind']].group}/"):
        return None
    return ControllerGang(kind=owner["kind"], name=owner["name"], minimum=None)


def sizes(owners: Owners, raw: Object) -> dict[str, int]:
    """Return the size of each gang of an owner; 0 or 1 if its pods are no gang."""
    of_owner = owners.sizes(raw["metadata"]["name"], raw.get("spec") or {})
    return {name: size for name, size in of_owner.items() if size <= MAX_SIZE}


def controller(metadata: Object) -> Object | None:
    """Return the reference to a pod's controller if a rule reads it."""
    references = (owner for owner in metadata.get("ownerReferences") or () if owner.get("controller"))
    return next((owner for owner in references if owner.get("kind") in OWNED), None)


# --- sizes on the pods ----------------------------------------------------------------------------------------------


def _leader_worker_set(labels: Values, annotations: Values) -> tuple[str, int] | None:
    """Return one group of a LeaderWorkerSet: the leader and its workers.

    With exclusive placement, the controller creates the workers when their leader has a node.
    """
    name, group, worker = (labels.get(f"{_LWS}{word}", "") for word in ("name", "group-index", "worker-index"))
    if not (name and group):
        return None
    size = _number(annotations.get(f"{_LWS}size"))
    if f"{_LWS}exclusive-topology" in annotations:
        size = 0 if worker == "0" else size - 1
    return f"{name}-{group}", size


def _kueue_pod_group(labels: Values, annotations: Values) -> tuple[str, int] | None:
    """Return a pod group of Kueue; not the pods of a StatefulSet, which may be created one after the other."""
    name = labels.get(f"{_KUEUE}pod-group-name")
    is_early = "true" in (annotations.get(f"{_KUEUE}pod-group-{word}") for word in ("fast-admission", "serving"))
    return None if not name or is_early else (name, _number(annotations.get(f"{_KUEUE}pod-group-total-count")))


def _number(text: str | None) -> int:
    """Return a number of pods; 0 for any other text."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return int(text) if text and is_number else 0


# --- sizes in objects -----------------------------------------------------------------------------------------------


def _replicated_job(labels: Values, annotations: Values) -> tuple[str, None] | None:
    """Return a ReplicatedJob of a JobSet, whose Jobs are created together.

    Other ReplicatedJobs may be created later. With exclusive placement, even pods of one Job are, unless JobSet places
    them by node selectors.
    """
    name, job = (labels.get(f"{_JOBSET}{word}", "") for word in ("jobset-name", "replicatedjob-name"))
    is_exclusive = f"{_JOBSET_ALPHA}exclusive-topology" in annotations
    one_by_one = is_exclusive and f"{_JOBSET_ALPHA}node-selector" not in annotations
    return (f"{name}.{job}", None) if name and job and not one_by_one else None


def _ray_cluster(name: str, spec: Object) -> dict[str, int]:
    """Return the head and the workers; of an autoscaled cluster, the least number of workers."""
    workers = 0
    for group in spec.get("workerGroupSpecs") or ():
        replicas = least = _count(group.get("minReplicas"), 0)
        if not spec.get("enableInTreeAutoscaling"):
            most = _count(group.get("maxReplicas"), MAX_SIZE)
            replicas = min(max(_count(group.get("replicas"), 0), least), most)
        workers += 0 if group.get("suspend") else replicas * max(1, _count(group.get("numOfHosts"), 1))
    return {name: 1 + workers}


def _training_job(field: str, name: str, spec: Object) -> dict[str, int]:
    """Return all replicas of a job of Kubeflow's training operator, or the least number that the job states."""
    replicas = [_count(of_type.get("replicas"), 1) for of_type in (spec.get(field) or {}).values()]
    least = _count((spec.get("elasticPolicy") or {}).get("minReplicas"), sum(replicas))
    return {name: _min_available(spec, least)}


def _mpi_job(name: str, spec: Object) -> dict[str, int]:
    """Return the workers. The launcher may be created later, and its pod has another controller."""
    workers = (spec.get("mpiReplicaSpecs") or {}).get("Worker") or {"replicas": 0}
    size = _count(workers.get("replicas"), 1)
    return {name: _min_available(spec, size + 1) - 1}


def _job_set(name: str, spec: Object) -> dict[str, int]:
    """Return the pods of each ReplicatedJob that run at the same time.

    A Job with more completions than that is a queue of tasks, and no gang.
    """
    of_jobs = {}
    for job in spec.get("replicatedJobs") or ():
        template = (job.get("template") or {}).get("spec") or {}
        parallelism = _count(template.get("parallelism"), 1)
        completions = _count(template.get("completions"), parallelism)
        pods = 0 if completions > parallelism else completions
        of_jobs[f"{name}.{job.get('name')}"] = _count(job.get("replicas"), 1) * pods
    return of_jobs


def _min_available(spec: Object, size: int) -> int:
    policy = (spec.get("runPolicy") or {}).get("schedulingPolicy") or {}
    return _count(policy.get("minAvailable"), size)


def _count(value: object, default: int) -> int:
    return value if isinstance(value, int) and value >= 0 else default


# --- the table ------------------------------------------------------------------------------------------------------


def _training_rule(kind: str, field: str) -> Rule:
    owners = Owners(group="kubeflow.org", version="v1", plural=f"{kind.lower()}s", sizes=partial(_training_job, field))
    return Rule(kind=kind, owners=owners)


RULES: Final = (
    Rule(
        kind="LeaderWorkerSet group",
        label=f"{_LWS}group-index",
        reads=tuple(f"{_LWS}{word}" for word in ("name", "group-index", "worker-index", "size", "exclusive-topology")),
        members=_leader_worker_set,
    ),
    Rule(
        kind="Kueue pod group",
        label=f"{_KUEUE}pod-group-name",
        reads=tuple(f"{_KUEUE}pod-group-{word}" for word in ("name", "total-count", "fast-admission", "serving")),
        members=_kueue_pod_group,
    ),
    Rule(
        kind="JobSet",
        label=f"{_JOBSET}replicatedjob-name",
        reads=(
            *(f"{_JOBSET}{word}" for word in ("jobset-name", "replicatedjob-name")),
            *(f"{_JOBSET_ALPHA}{word}" for word in ("exclusive-topology", "node-selector")),
        ),
        members=_replicated_job,
        owners=Owners(group="jobset.x-k8s.io", version="v1alpha2", plural="jobsets", sizes=_job_set),
    ),
    Rule(
        kind="RayCluster",
        owners=Owners(group="ray.io", version="v1", plural="rayclusters", sizes=_ray_cluster),
    ),
    Rule(
        kind="MPIJob",
        owners=Owners(group="kubeflow.org", version="v2beta1", plural="mpijobs", sizes=_mpi_job),
    ),
    _training_rule("PyTorchJob", "pytorchReplicaSpecs"),
    _training_rule("TFJob", "tfReplicaSpecs"),
    _training_rule("JAXJob", "jaxReplicaSpecs"),
    _training_rule("PaddleJob", "paddleReplicaSpecs"),
    _training_rule("XGBoostJob", "xgbReplicaSpecs"),
)
"""One row for each kind. If several concern a pod, the first decides."""
_BY_LABEL: Final = tuple(rule for rule in RULES if rule.label)
OWNED: Final[Mapping[str, Owners]] = {rule.kind: rule.owners for rule in RULES if rule.owners is not None}
"""Kind -> its objects, for the kinds whose sizes are in objects."""
READS: Final = frozenset(name for rule in RULES for name in rule.reads)
"""The labels and annotations that rules read."""
