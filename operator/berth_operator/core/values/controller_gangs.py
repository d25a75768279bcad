"""Gangs of controllers: pods that their controller creates to run together, without a group that a user names.

    of_pod(metadata)                ->  ControllerGang("LeaderWorkerSet group", "vllm-0", 4) | None
    of_pod(metadata)                ->  ControllerGang("RayCluster", "llm", None)
    sizes(OWNED["RayCluster"], raw) ->  {"llm": 5}

`RULES` has one row for each kind of controller. Some controllers write the size of the gang on the pods. For the
others, the size is in the object that owns the pods.

Some controllers create a part of the pods only after others run. Those that come first do not wait for them. They are
placed where the later ones will fit (docs/design/promised-places.md):

    later(OWNED["JobSet"], raw)     ->  {"train.driver": (LaterPods(gang="train.worker", count=4, template={...}),)}
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
_TRAINING: Final = "training.kubeflow.org/"
_POD_GANG: Final = "grove.io/podgang"
_LWS_GROUP: Final = "LeaderWorkerSet group"
_MAX_JOBS: Final = 100
"""ReplicatedJobs of a JobSet whose order is read. Pods of a JobSet with more get no promised places."""
_DIGITS: Final = 6
MAX_SIZE: Final = 10**_DIGITS - 1
"""Members: a larger number is not read, because no cluster has so many pods."""
MAX_NAME: Final = 127
"""Characters of a gang's name: those of two labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerGang:
    """The gang of a pod, as its controller defines it."""

    kind: str
    """What messages call it."""
    name: str
    """Its name, unique in the namespace among the gangs of the kind."""
    minimum: int | None
    """The number of members that start together, at least 2; None if the controller's object has it."""
    first: int = 0
    """The number of members that the controller creates before the others; 0 if the pods do not show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterPods:
    """Equal pods that a controller creates only after the members of a gang run."""

    gang: str
    """Name of the gang that they join."""
    count: int
    template: Object | None = None
    """Their pod template; None if they request the same as the members that come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """The objects of a kind that have the sizes of gangs."""

    group: str
    version: str
    plural: str
    sizes: Callable[[str, Object], Mapping[str, int]]
    """Returns the size of each gang, by the object's name and spec."""
    later: Callable[[Object], Mapping[str, tuple[LaterPods, ...]]] = lambda _raw: {}
    """Returns the pods that come only after the members of a gang run, by the object."""
    replicas: Callable[[Object], int] | None = None
    """Returns how many equal gangs an object defines, by its spec. Their names are the object's name, a hyphen, and a
    number from 0. `sizes` and `later` then have one gang, which has the object's own name: a small object may define
    very many. None if `sizes` has all gangs."""

    @property
    def path(self) -> str:
        """Return the path at which the API server lists them."""
        return f"/apis/{self.group}/{self.version}/{self.plural}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How to read the gangs of one kind of controller."""

    kind: str
    label: str = ""
    """The label of the pods that `members` reads. Other pods are controlled by an object of the kind, as one gang."""
    value: str = ""
    """The value that the label has on these pods; empty if it may have any."""
    members: Callable[[Values, Values], ControllerGang | None] = lambda _labels, _annotations: None
    """Returns a pod's gang, by labels and annotations; None without a gang."""
    equal: bool = False
    """Whether missing members are assumed to request the same as the others, if no object shows what they request."""
    reads: tuple[str, ...] = ()
    """The labels and annotations that `members` reads."""
    owners: Owners | None = None
    """The objects that have the sizes, if the pods have none."""


def of_pod(metadata: Object) -> ControllerGang | None:
    """Return the gang of a pod's controller; None if no rule concerns the pod, or it has no other member."""
    labels = metadata.get("labels") or _NONE
    for rule in _BY_LABEL:
        if rule.label in labels and rule.value in ("", labels[rule.label]):
            gang = rule.members(labels, metadata.get("annotations") or _NONE)
            return gang if gang is not None and (gang.minimum is None or gang.minimum > 1) else None
    owner = controller(metadata)
    if owner is None or not str(owner.get("apiVersion")).startswith(f"{OWNED[owner['kind']].group}/"):
        return None
    return ControllerGang(kind=owner["kind"], name=owner["name"], minimum=None)


def sizes(owners: Owners, raw: Object) -> dict[str, int]:
    """Return the size of each gang of an owner; 0 or 1 if its pods are no gang."""
    of_owner = owners.sizes(raw["metadata"]["name"], raw.get("spec") or {})
    return {name: size for name, size in of_owner.items() if size <= MAX_SIZE}


def later(owners: Owners, raw: Object) -> dict[str, tuple[LaterPods, ...]]:
    """Return the pods that an owner's controller creates only after the members of a gang run."""
    return {
        name: pods
        for name, pods in owners.later(raw).items()
        if sum(part.count for part in pods) <= MAX_SIZE and all(len(part.gang) <= MAX_NAME for part in pods)
    }


def replicas(owners: Owners, raw: Object) -> int | None:
    """Return how many equal, numbered gangs an owner defines; None if `sizes` has all gangs."""
    return None if owners.replicas is None else owners.replicas(raw.get("spec") or {})


def replica_of(kind: str, group: str) -> tuple[str, int] | None:
    """Return the owner (namespace/name) of a gang that is one of its equal gangs, and the gang's number.

    None if the owners of this kind define no such gangs, or the gang has no number.
    """
    owners = OWNED.get(kind)
    if owners is None or owners.replicas is None:
        return None
    owner, _, text = group.rpartition("-")
    number = _number(text)
    return (owner, number) if owner and text == str(number) else None


def owner_of(kind: str, group: str) -> str:
    """Return the owner (namespace/name) of a gang (namespace/name) of a kind."""
    numbered = replica_of(kind, group)
    # The names of ReplicatedJobs and launchers have a dot; those of the objects have none.
    return group.partition(".")[0] if numbered is None else numbered[0]


def controller(metadata: Object) -> Object | None:
    """Return the reference to a pod's controller if a rule reads it."""
    references = (owner for owner in metadata.get("ownerReferences") or () if owner.get("controller"))
    return next((owner for owner in references if owner.get("kind") in OWNED), None)


# --- sizes on the pods ----------------------------------------------------------------------------------------------


def _leader_worker_set(labels: Values, annotations: Values) -> ControllerGang | None:
    """Return one group of a LeaderWorkerSet: the leader and its workers.

    With exclusive placement, the controller creates the workers when their leader has a node.
    """
    name, group = (labels.get(f"{_LWS}{word}", "") for word in ("name", "group-index"))
    if not (name and group):
        return None
    first = 1 if f"{_LWS}exclusive-topology" in annotations else 0
    size = _number(annotations.get(f"{_LWS}size"))
    return ControllerGang(kind=_LWS_GROUP, name=f"{name}-{group}", minimum=size, first=first)


def _kueue_pod_group(labels: Values, annotations: Values) -> ControllerGang | None:
    """Return a pod group of Kueue; not the pods of a StatefulSet, which may be created one after the other."""
    name = labels.get(f"{_KUEUE}pod-group-name")
    is_early = "true" in (annotations.get(f"{_KUEUE}pod-group-{word}") for word in ("fast-admission", "serving"))
    if not name or is_early:
        return None
    size = _number(annotations.get(f"{_KUEUE}pod-group-total-count"))
    return ControllerGang(kind="Kueue pod group", name=name, minimum=size)


def _number(text: str | None) -> int:
    """Return a number of pods; 0 for any other text."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return int(text) if text and is_number else 0


# --- sizes in objects -----------------------------------------------------------------------------------------------


def _replicated_job(labels: Values, _annotations: Values) -> ControllerGang | None:
    """Return a ReplicatedJob of a JobSet. Other ReplicatedJobs may be created later."""
    name, job = (labels.get(f"{_JOBSET}{word}", "") for word in ("jobset-name", "replicatedjob-name"))
    return ControllerGang(kind="JobSet", name=f"{name}.{job}", minimum=None) if name and job else None


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


def _mpi_launcher(labels: Values, _annotations: Values) -> ControllerGang | None:
    """Return the launcher of an MPIJob: a Job of Kubernetes controls it, and it may be created after the workers."""
    name = labels.get(f"{_TRAINING}job-name", "")
    return ControllerGang(kind="MPIJob", name=f"{name}.launcher", minimum=None) if name else None


def _mpi_job(name: str, spec: Object) -> dict[str, int]:
    """Return the workers, and the launcher by itself."""
    workers = (spec.get("mpiReplicaSpecs") or {}).get("Worker") or {"replicas": 0}
    size = _count(workers.get("replicas"), 1)
    return {name: _min_available(spec, size + 1) - 1, f"{name}.launcher": 1}


def _later_of_mpi_job(raw: Object) -> dict[str, tuple[LaterPods, ...]]:
    """Return the launcher if it is created once the workers are ready. Without devices, it fits nearly everywhere."""
    name, spec = raw["metadata"]["name"], raw.get("spec") or {}
    template = ((spec.get("mpiReplicaSpecs") or {}).get("Launcher") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    listed = (amounts for container in containers for amounts in (container.get("resources") or {}).values())
    # cpu and memory have no domain; charts write 0 where no device is requested.
    has_devices = any(
        "/" in resource and str(amount) != "0"
        for amounts in listed
        if isinstance(amounts, dict)
        for resource, amount in amounts.items()
    )
    if spec.get("launcherCreationPolicy") != "WaitForWorkersReady" or not has_devices:
        return {}
    return {name: (LaterPods(gang=f"{name}.launcher", count=1, template=template),)}


def _job_set(name: str, spec: Object) -> dict[str, int]:
    """Return the pods of each ReplicatedJob that run at the same time."""
    return {f"{name}.{_name_of(job)}": _pods_of_job(job) for job in spec.get("replicatedJobs") or ()}


def _name_of(job: Object) -> str:
    """Return the name of a ReplicatedJob.

    Raises:
        TypeError: it is no text. The text of a list of a thousand levels would need too much stack.
    """
    name = job.get("name")
    if not isinstance(name, str):
        raise TypeError(f"the name of a ReplicatedJob is no text, but {type(name).__name__}")
    return name


def _pods_of_job(job: Object) -> int:
    """Return the pods of a ReplicatedJob. A Job with more completions than pods is a queue of tasks, and no gang."""
    template = (job.get("template") or {}).get("spec") or {}
    parallelism = _count(template.get("parallelism"), 1)
    completions = _count(template.get("completions"), parallelism)
    return 0 if completions > parallelism else _count(job.get("replicas"), 1) * completions


def _later_of_job_set(raw: Object) -> dict[str, tuple[LaterPods, ...]]:
    """Return, for each ReplicatedJob, the pods that are created once its first pods have a node or are ready.

    With exclusive placement, JobSet's webhook refuses the pods of a Job until its first pod has a node, unless JobSet
    places them by node selectors. A ReplicatedJob that waits for others to *complete* is not among them: they may run
    for hours, and free their own places before.
    """
    name, spec = raw["metadata"]["name"], raw.get("spec") or {}
    jobs = {_name_of(job): job for job in spec.get("replicatedJobs") or ()}
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    if len(jobs) > _MAX_JOBS:
        return {}
    one_by_one = {job for job in jobs if _is_one_by_one(raw, jobs[job])}
    # Each is shared by all ReplicatedJobs that it follows: these are thousands of pairs.
    parts_of = {
        job: LaterPods(
            gang=f"{name}.{job}",
            count=_pods_of_job(jobs[job]),
            template=((jobs[job].get("template") or {}).get("spec") or {}).get("template") or {},
        )
        for job in jobs
        # With exclusive placement, the place would have to be in a domain that is not known yet.
        if job not in one_by_one and _pods_of_job(jobs[job])
    }
    of_jobs: dict[str, tuple[LaterPods, ...]] = {}
    for number, (job_name, job) in enumerate(jobs.items()):
        parts: list[LaterPods] = []
        size, replicas = _pods_of_job(job), _count(job.get("replicas"), 1)
        if not size:
            continue
        if job_name in one_by_one and size > replicas:
            parts.append(LaterPods(gang=f"{name}.{job_name}", count=size - replicas))
        following = list(jobs)[number + 1 :] if in_order else _dependants(jobs, job_name)
        parts += [parts_of[other] for other in following if other in parts_of]
        if parts:
            of_jobs[f"{name}.{job_name}"] = tuple(parts)
    return of_jobs


def _is_one_by_one(job_set: Object, job: Object) -> bool:
    """Return whether JobSet places each Job in a domain of its own, beginning with the Job's first pod."""
    metadata = job_set["metadata"], (job.get("template") or {}).get("metadata") or {}
    annotations = {name for of_object in metadata for name in of_object.get("annotations") or ()}
    return f"{_JOBSET_ALPHA}exclusive-topology" in annotations and f"{_JOBSET_ALPHA}node-selector" not in annotations


def _dependants(jobs: Mapping[str, Object], first: str) -> list[str]:
    """Return the ReplicatedJobs that are created once a ReplicatedJob is ready, also indirectly."""
    ready = [first]
    for name, job in jobs.items():  # JobSet requires that a ReplicatedJob comes after those on which it depends
        on = job.get("dependsOn") or ()
        if any(needed.get("name") in ready and needed.get("status") == "Ready" for needed in on):
            ready.append(name)
    return ready[1:]


def _group(name: str, spec: Object) -> dict[str, int]:
    """Return the pods of one group of a LeaderWorkerSet. All groups are equal."""
    return {name: _count((spec.get("leaderWorkerTemplate") or {}).get("size"), 1)}


def _later_of_group(raw: Object) -> dict[str, tuple[LaterPods, ...]]:
    """Return the workers of one group, if they are created once their leader is ready or has a node."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    template = (spec.get("leaderWorkerTemplate") or {}).get("workerTemplate") or {}
    is_exclusive = f"{_LWS}exclusive-topology" in (metadata.get("annotations") or ())
    if not (is_exclusive or spec.get("startupPolicy") == "LeaderReady"):
        return {}
    return {
        group: (LaterPods(gang=group, count=size - 1, template=template),)
        for group, size in _group(metadata["name"], spec).items()
        if size > 1
    }


def _pod_gang(name: str, spec: Object) -> dict[str, int]:
    """Return the pods that Grove requires of all pod groups together."""
    return {name: sum(_count(group.get("minReplicas"), 0) for group in spec.get("podgroups") or ())}


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
        kind=_LWS_GROUP,
        label=f"{_LWS}group-index",
        reads=tuple(f"{_LWS}{word}" for word in ("name", "group-index", "size", "exclusive-topology")),
        members=_leader_worker_set,
        equal=True,
        owners=Owners(
            group="leaderworkerset.x-k8s.io",
            version="v1",
            plural="leaderworkersets",
            sizes=_group,
            later=_later_of_group,
            replicas=lambda spec: _count(spec.get("replicas"), 1),
        ),
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
        reads=tuple(f"{_JOBSET}{word}" for word in ("jobset-name", "replicatedjob-name")),
        members=_replicated_job,
        owners=Owners(
            group="jobset.x-k8s.io", version="v1alpha2", plural="jobsets", sizes=_job_set, later=_later_of_job_set
        ),
    ),
    Rule(
        kind="PodGang",
        label=_POD_GANG,
        reads=(_POD_GANG,),
        members=lambda labels, _: ControllerGang(kind="PodGang", name=labels[_POD_GANG], minimum=None),
        owners=Owners(group="scheduler.grove.io", version="v1alpha1", plural="podgangs", sizes=_pod_gang),
    ),
    Rule(
        kind="RayCluster",
        owners=Owners(group="ray.io", version="v1", plural="rayclusters", sizes=_ray_cluster),
    ),
    Rule(
        kind="MPIJob",
        label=f"{_TRAINING}job-role",
        value="launcher",
        reads=tuple(f"{_TRAINING}{word}" for word in ("job-role", "job-name")),
        members=_mpi_launcher,
        owners=Owners(
            group="kubeflow.org", version="v2beta1", plural="mpijobs", sizes=_mpi_job, later=_later_of_mpi_job
        ),
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
EQUAL: Final = frozenset(rule.kind for rule in RULES if rule.equal)
"""The kinds whose missing members are assumed to request the same as the others."""
READS: Final = frozenset(name for rule in RULES for name in rule.reads)
"""The labels and annotations that rules read."""
