"""Workload files: the pods that the API server and controllers would create from them.

A file has YAML or JSON documents, or Lists of them. Pods get the fields that admission would set and scheduling reads:
requests from limits, the priority of their PriorityClass, a namespace. Documents of other kinds are skipped and listed
in the notes, so that the output of `helm template` or `kustomize build` can be used unchanged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from berth_api import resources
from berth_api.admission import injection, renaming
from berth_api.resources import quantity
from berth_base import documents
from berth_base.documents import DocumentError
from berth_operator.commands.errors import InputError
from berth_operator.settings.configuration import messages

Object = dict[str, Any]

MAX_PODS: Final = 100_000
"""Most pods of one file."""
HASH: Final = "simulated"
CREATED: Final = "9999-01-01T00:00:00Z"
"""Creation time of all pods and PodGroups of a file. It is later than the time of any existing object, because the
queue orders by age. All have the same second, so the queue keeps the order of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One object of a file."""

    where: str
    """The file, and the document's number in it."""
    body: Object

    @property
    def kind(self) -> str:
        """Return the object's kind."""
        return str(self.body.get("kind") or "")

    @property
    def title(self) -> str:
        """Return the object's kind and name."""
        metadata = self.body.get("metadata")
        return f"{self.kind} {metadata.get('name') if isinstance(metadata, dict) else None}"


@dataclass(slots=True, kw_only=True)
class WorkloadFile:
    """The objects of a workload file."""

    pods: list[tuple[Document, Object]] = field(default_factory=list)
    """(the document that creates the pod, pod), in the order of the file."""
    groups: list[tuple[Document, Object]] = field(default_factory=list)
    priority_classes: list[Object] = field(default_factory=list)
    claim_objects: list[Document] = field(default_factory=list)
    """ResourceClaims, their templates and DeviceClasses."""
    notes: list[str] = field(default_factory=list)
    """The parts of the file that are not simulated."""


# --- the form of documents ----------------------------------------------------------------------------------


def _check_quantity(value: str | float) -> str | float:
    quantity.parse(str(value))
    return value


Quantity = Annotated[str | int | float, AfterValidator(_check_quantity)]
Count = Annotated[int, Field(ge=0, le=MAX_PODS)]
Strings = dict[str, str]


class _Form(BaseModel):
    """The fields of a document that are checked; other fields are passed on unchanged."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, extra="allow")


class _Metadata(_Form):
    labels: Strings | None = None
    annotations: Strings | None = None
    namespace: str | None = None


class _Named(_Metadata):
    name: Annotated[str, Field(min_length=1, max_length=253)]


class _Resources(_Form):
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class _Container(_Form):
    name: str
    resources: _Resources | None = None


class _PodClaim(_Form):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _PodSpec(_Form):
    containers: Annotated[list[_Container], Field(min_length=1)]
    init_containers: list[_Container] | None = None
    resources: _Resources | None = None
    overhead: dict[str, Quantity] | None = None
    scheduler_name: str | None = None
    priority_class_name: str | None = None
    priority: int | None = None
    node_selector: Strings | None = None
    affinity: dict[str, Any] | None = None
    tolerations: list[dict[str, Any]] | None = None
    resource_claims: list[_PodClaim] | None = None
    topology_spread_constraints: list[dict[str, Any]] | None = None
    volumes: list[dict[str, Any]] | None = None


class _Template(_Form):
    metadata: _Metadata | None = None
    spec: _PodSpec


class _Pod(_Form):
    metadata: _Named
    spec: _PodSpec


class _ReplicasSpec(_Form):
    replicas: Count | None = None
    template: _Template


class _Replicas(_Form):
    metadata: _Named
    spec: _ReplicasSpec


class _JobSpec(_Form):
    parallelism: Count | None = None
    completions: Count | None = None
    suspend: bool | None = None
    template: _Template


class _Job(_Form):
    metadata: _Named
    spec: _JobSpec


class _GroupSpec(_Form):
    min_member: Annotated[int, Field(ge=1)]


class _Group(_Form):
    metadata: _Named
    spec: _GroupSpec


class _AnyGroup(_Form):
    metadata: _Metadata | None = None
    spec: _GroupSpec


class _ClaimObject(_Form):
    metadata: _Named
    spec: dict[str, Any]


class _ClaimTemplateSpec(_Form):
    spec: dict[str, Any]


class _ClaimTemplate(_Form):
    metadata: _Named
    spec: _ClaimTemplateSpec


class _PriorityClass(_Form):
    metadata: _Named
    value: int


# --- controllers --------------------------------------------------------------------------------------------


def _copies(
    count: Callable[[Object], int], labels: Callable[[str, int], Strings]
) -> Callable[[Object], Iterator[Object]]:
    def made(body: Object) -> Iterator[Object]:
        spec, name = body["spec"], body["metadata"]["name"]
        metadata = spec["template"].get("metadata") or {}
        for number in range(count(spec)):
            own = f"{name}-{number}"
            every = {**(metadata.get("labels") or {}), **labels(name, number)}
            namespace = body["metadata"].get("namespace")
            yield {
                "metadata": {**metadata, "name": own, "namespace": namespace, "labels": every},
                "spec": dict(spec["template"]["spec"]),
            }

    return made


def _replicas(spec: Object) -> int:
    count = spec.get("replicas")
    return 1 if count is None else int(count)


def _at_once(spec: Object) -> int:
    """Return how many pods of a Job run concurrently."""
    parallelism, completions = spec.get("parallelism"), spec.get("completions")
    count = 1 if parallelism is None else int(parallelism)
    return 0 if spec.get("suspend") else count if completions is None else min(count, int(completions))


def _itself(body: Object) -> Iterator[Object]:
    yield {"metadata": dict(body["metadata"]), "spec": dict(body["spec"])}


def _hashed(_name: str, _number: int) -> Strings:
    return {"pod-template-hash": HASH}


def _numbered(name: str, number: int) -> Strings:
    return {"statefulset.kubernetes.io/pod-name": f"{name}-{number}", "apps.kubernetes.io/pod-index": str(number)}


def _of_job(name: str, _number: int) -> Strings:
    return {"batch.kubernetes.io/job-name": name, "job-name": name}


_MAKERS: Final[Mapping[str, tuple[type[_Form], Callable[[Object], Iterator[Object]]]]] = {
    "Pod": (_Pod, _itself),
    "Deployment": (_Replicas, _copies(_replicas, _hashed)),
    "ReplicaSet": (_Replicas, _copies(_replicas, _hashed)),
    "StatefulSet": (_Replicas, _copies(_replicas, _numbered)),
    "Job": (_Job, _copies(_at_once, _of_job)),
}
"""Kind -> its form, and a function that creates its pods."""


_CLAIM_FORMS: Final[Mapping[str, type[_Form]]] = {
    "ResourceClaim": _ClaimObject,
    "ResourceClaimTemplate": _ClaimTemplate,
    "DeviceClass": _ClaimObject,
}
"""Kind -> its form, for objects that define the devices that pods request."""


def read(text: str, name: str) -> WorkloadFile:
    """Read a workload file; `name` is for errors.

    Raises:
        InputError: the file is invalid.
    """
    try:
        bodies = documents.read_all(text)
    except DocumentError as error:
        raise InputError(f"{name}: not YAML: {error}") from error
    numbered = ((body, f"{name}: document {number}") for number, body in enumerate(bodies, start=1) if body is not None)
    workload = WorkloadFile()
    for document in (document for body, where in numbered for document in _unpacked(body, where)):
        kind = document.kind
        if kind in _MAKERS:
            form, make = _MAKERS[kind]
            _check(document, form)
            workload.pods += [(document, pod) for pod in make(document.body)]
        elif kind == "PodGroup":
            _check(document, _Group)
            workload.groups.append((document, document.body))
        elif kind == "PriorityClass":
            _check(document, _PriorityClass)
            workload.priority_classes.append(document.body)
        elif kind in _CLAIM_FORMS:
            _check(document, _CLAIM_FORMS[kind])
            workload.claim_objects.append(document)
        else:
            workload.notes.append(f"{document.where}: {document.title} is left out: it makes no pods here")
        spec = document.body.get("spec")
        if isinstance(spec, dict) and spec.get("volumeClaimTemplates"):
            workload.notes.append(f"{document.where}: the volumeClaimTemplates of {document.title} are left out")
        if len(workload.pods) > MAX_PODS:
            raise InputError(f"{name}: more than {MAX_PODS:,} pods")
    return workload


def check_template(body: Any) -> None:
    """Check that a value has the form of a pod or a pod template.

    Raises:
        InputError: it does not; the message names the field.
    """
    _check_form(body, _Template)


def check_group(body: Any) -> None:
    """Check that a value has the form of a PodGroup of any system; raises as `check_template`."""
    _check_form(body, _AnyGroup)


def _check_form(body: Any, form: type[_Form]) -> None:
    try:
        form.model_validate(body)
    except ValidationError as error:
        raise InputError("; ".join(messages(error))) from error


def _check(document: Document, form: type[_Form]) -> None:
    try:
        form.model_validate(document.body)
    except ValidationError as error:
        raise InputError(f"{document.where} ({document.title}): {'; '.join(messages(error))}") from error


def _unpacked(body: Any, where: str) -> Iterator[Document]:
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        raise InputError(f"{where}: not an object of Kubernetes: it has no kind")
    if not body["kind"].endswith("List"):
        yield Document(where=where, body=body)
        return
    items = body.get("items") or ()
    if not isinstance(items, list | tuple):
        raise InputError(f"{where}: items: not a list")
    for number, item in enumerate(items):
        yield from _unpacked(item, f"{where}, items[{number}]")


# --- what admission adds ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The defaults that admission sets in pods."""

    namespace: str
    schedulers: Sequence[str]
    """The scheduler names that a pod may have; the first is the default."""
    priority_classes: Mapping[str, Object]

    def scheduler(self, pod: Object) -> str:
        """Return the scheduler name that a pod gets."""
        return pod["spec"].get("schedulerName") or self.schedulers[0]

    def is_ours(self, pod: Object) -> bool:
        """Return whether a profile would schedule a pod: not if it names its node or another scheduler."""
        return not pod["spec"].get("nodeName") and self.scheduler(pod) in self.schedulers

    def admit(self, document: Document, pod: Object) -> Object:
        """Return a pod as the API server would create it.

        Raises:
            InputError: the pod would be refused.
        """
        metadata, spec = pod["metadata"], pod["spec"]
        namespace = metadata.get("namespace") or self.namespace
        where = f"{document.where} ({document.title}): spec"
        name = spec.get("priorityClassName")
        if not name:
            priority_class = next(
                (candidate for candidate in self.priority_classes.values() if candidate.get("globalDefault")),
                {"value": 0},
            )
        elif name in self.priority_classes:
            priority_class = self.priority_classes[name]
        else:
            allowed = ", ".join(sorted(self.priority_classes)) or "none, there are no PriorityClasses"
            raise InputError(f'{where}.priorityClassName: "{name}" does not exist; allowed: {allowed}')
        policy = spec.get("preemptionPolicy") or priority_class.get("preemptionPolicy")
        given = spec.get("priority")
        created = {
            "metadata": {
                **metadata,
                "namespace": namespace,
                "uid": f"simulated/{namespace}/{metadata['name']}",
                "creationTimestamp": CREATED,
            },
            "spec": {
                **resources.from_limits(spec),
                "schedulerName": self.scheduler(pod),
                "priority": priority_class["value"] if given is None else given,
                **({"preemptionPolicy": policy} if policy else {}),
            },
            "status": {},
        }
        return injection.injected(renaming.renamed(created))
