"""Limits for the size of the parts of a pod that scheduling reads.

Kubernetes limits a pod to about 1.5 MB, and a tenant may fill any part of it. The data that is kept for each pod, and
the data that a decision compares with all nodes and all other pods, must have a bounded cost. A waiting pod beyond a
limit gets an error. A bound pod takes its node in any case, and the part beyond the limit is not read.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from berth_api import names

Object = Mapping[str, Any]

MAX_TEMPLATE_BYTES: Final = 2**16
"""Bytes of the labels and the scheduling parts of the spec, as JSON. Most pods have 2 KB."""
MAX_ANNOTATION_BYTES: Final = 2**13
"""The annotations that scheduling reads."""
MAX_LABELS: Final = 128
MAX_LABEL_BYTES: Final = 2**13
MAX_CONTAINERS: Final = 128
MAX_RESOURCES: Final = 64
"""Different resources; each has a column of all nodes."""
MAX_HOST_PORTS: Final = 128
MAX_TOLERATIONS: Final = 128
MAX_NODE_REQUIREMENTS: Final = 128
"""Requirements of the node selector and of all terms of node affinity: each is compared with all nodes."""
MAX_POD_TERMS: Final = 32
"""Terms of pod affinity and anti-affinity, and topology spread constraints: each is compared with all placed pods."""
MAX_POD_TERM_VALUES: Final = 256
"""Labels, values and namespaces in all terms together."""
MAX_VOLUMES: Final = 128
"""Volumes that scheduling depends on."""
MAX_RESOURCE_CLAIMS: Final = 32

_UNREAD_OF_BOUND: Final = frozenset({"affinity", "nodeSelector", "tolerations", "topologySpreadConstraints"})
_DEVICES: Final = (names.PREFIX, names.OTHER_PREFIX, "nvidia.com/")
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


class TooLargeError(ValueError):
    """A part of a pod is larger than a limit. The text names the part, its size and what is allowed."""


class Size(NamedTuple):
    """How large one part of a pod is."""

    where: str
    number: int
    unit: str
    allowed: int

    @property
    def is_too_large(self) -> bool:
        """Return whether it is larger than allowed."""
        return self.number > self.allowed

    def __str__(self) -> str:
        return f"{self.where}: {self.number} {self.unit}; allowed are at most {self.allowed}"


def check_parts(metadata: Object, spec: Object, annotations: Mapping[str, str]) -> None:
    """Check the parts of a waiting pod. Scheduling reads these of its annotations.

    Raises:
        TooLargeError: a part of it is too large.
    """
    _check(_of_parts(metadata, spec, annotations))


def check_mounts(spec: Object) -> None:
    """Check the volumes and claims of a waiting pod, which its replicas may have others of.

    Raises:
        TooLargeError: there are too many.
    """
    _check(_of_mounts(spec))


def check_template(template: bytes, pod: Object, annotations: Mapping[str, str]) -> None:
    """Check everything that scheduling reads of a waiting pod, as JSON.

    Raises:
        TooLargeError: it is too large; the text names the part if one part alone is.
    """
    if len(template) > MAX_TEMPLATE_BYTES:
        check_parts(pod["metadata"], pod["spec"], annotations)
        where = "spec and metadata.labels, the parts that scheduling reads"
        size = Size(where=where, number=len(template), unit="bytes", allowed=MAX_TEMPLATE_BYTES)
        raise TooLargeError(str(size))


def trimmed(spec: Object) -> dict[str, Any]:
    """Return what a bound pod takes of its node: containers with as many resources and host ports as are read."""
    kept = {name: value for name, value in spec.items() if name not in _UNREAD_OF_BOUND}
    for kind in ("initContainers", "containers"):
        trimmed_containers = []
        for container in (spec.get(kind) or ())[:MAX_CONTAINERS]:
            of_container = {name: value for name, value in container.items() if name != "image"}
            if ports := container.get("ports"):
                of_container["ports"] = [port for port in ports if port.get("hostPort")][:MAX_HOST_PORTS]
            if resources := container.get("resources"):
                of_container["resources"] = {
                    field: first_resources(amounts) if isinstance(amounts, dict) else amounts
                    for field, amounts in resources.items()
                }
            trimmed_containers.append(of_container)
        if trimmed_containers:
            kept[kind] = trimmed_containers
    return kept


def first_resources(amounts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return as many resources as are read: first the resources that every node has, then devices."""
    if len(amounts) <= MAX_RESOURCES:
        return amounts
    ranked = sorted(amounts, key=lambda name: ("/" in name, not name.startswith(_DEVICES), name))
    return {name: amounts[name] for name in ranked[:MAX_RESOURCES]}


def _check(sizes: Iterable[Size]) -> None:
    for size in sizes:
        if size.is_too_large:
            raise TooLargeError(str(size))


def has_too_many_labels(labels: Mapping[str, str]) -> bool:
    """Return whether a pod has more labels than are read."""
    return len(labels) > MAX_LABELS or _bytes(labels) > MAX_LABEL_BYTES


def has_too_many_terms(spec: Object) -> bool:
    """Return whether a pod has more terms about other pods than are read; most pods have none."""
    has_any = spec.get("affinity") or spec.get("topologySpreadConstraints")
    return bool(has_any) and any(size.is_too_large for size in _of_pod_terms(spec))


def _bytes(texts: Mapping[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in texts.items())


def _of_parts(metadata: Object, spec: Object, annotations: Mapping[str, str]) -> Iterator[Size]:
    for name, value in annotations.items():
        yield Size(where=f"annotation {name}", number=len(value.encode()), unit="bytes", allowed=MAX_ANNOTATION_BYTES)
    total = sum(len(value.encode()) for value in annotations.values())
    yield Size(where="the annotations that scheduling reads", number=total, unit="bytes", allowed=MAX_ANNOTATION_BYTES)
    labels = metadata.get("labels") or {}
    yield Size(where="metadata.labels", number=len(labels), unit="labels", allowed=MAX_LABELS)
    yield Size(where="metadata.labels", number=_bytes(labels), unit="bytes", allowed=MAX_LABEL_BYTES)

    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    yield Size(where="spec.containers", number=len(containers), unit="containers", allowed=MAX_CONTAINERS)
    requests = ((container.get("resources") or {}).get("requests") or {} for container in containers)
    resources = len(set(chain.from_iterable(requests)))
    yield Size(where="spec.containers[].resources", number=resources, unit="names", allowed=MAX_RESOURCES)
    ports = sum(bool(port.get("hostPort")) for container in containers for port in container.get("ports") or ())
    yield Size(where="spec.containers[].ports", number=ports, unit="ports", allowed=MAX_HOST_PORTS)
    tolerations = len(spec.get("tolerations") or ())
    yield Size(where="spec.tolerations", number=tolerations, unit="tolerations", allowed=MAX_TOLERATIONS)

    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or ()
    preferred = (term.get("preference") or {} for term in affinity.get(PREFERRED) or ())
    requirements = len(spec.get("nodeSelector") or {}) + sum(
        len(term.get("matchExpressions") or ()) + len(term.get("matchFields") or ())
        for term in chain(required, preferred)
    )
    where = "spec.nodeSelector and spec.affinity.nodeAffinity"
    yield Size(where=where, number=requirements, unit="requirements", allowed=MAX_NODE_REQUIREMENTS)
    yield from _of_pod_terms(spec)
    yield from _of_mounts(spec)


def _of_mounts(spec: Object) -> Iterator[Size]:
    yield Size(where="spec.volumes", number=len(spec.get("volumes") or ()), unit="volumes", allowed=MAX_VOLUMES)
    claims = len(spec.get("resourceClaims") or ())
    yield Size(where="spec.resourceClaims", number=claims, unit="claims", allowed=MAX_RESOURCE_CLAIMS)


def _of_pod_terms(spec: Object) -> Iterator[Size]:
    affinity = spec.get("affinity") or {}
    terms: list[Object] = []
    for kind in ("podAffinity", "podAntiAffinity"):
        of_kind = affinity.get(kind) or {}
        terms += of_kind.get(REQUIRED) or ()
        terms += (term["podAffinityTerm"] for term in of_kind.get(PREFERRED) or ())
    terms += spec.get("topologySpreadConstraints") or ()
    selectors = [term.get(kind) or {} for term in terms for kind in ("labelSelector", "namespaceSelector")]
    expressions = chain.from_iterable(selector.get("matchExpressions") or () for selector in selectors)
    values = (
        sum(len(term.get("namespaces") or ()) for term in terms)
        + sum(len(selector.get("matchLabels") or {}) for selector in selectors)
        + sum(1 + len(expression.get("values") or ()) for expression in expressions)
    )
    where = "spec.affinity.podAffinity, podAntiAffinity and spec.topologySpreadConstraints"
    yield Size(where=where, number=len(terms), unit="terms", allowed=MAX_POD_TERMS)
    yield Size(where=where, number=values, unit="labels and values", allowed=MAX_POD_TERM_VALUES)
