"""What Kubernetes' admission makes of a pod that a controller will create: LimitRanges, ResourceQuotas, priority.

    refusal([(pod, 12)], kept=(), rules)  ->  NotAdmitted("exceeded quota: gpus, requested: …=12, …") | None

Facts of the admission plug-ins LimitRanger and ResourceQuota. Amounts of cpu are in thousandths of a core.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from berth_api import resources
from berth_api.resources import CPU, HUGE_PAGES, MEMORY, Amounts, quantity

EPHEMERAL_STORAGE: Final = "ephemeral-storage"
REQUESTS: Final = "requests."
LIMITS: Final = "limits."
PODS: Final = ("pods", "count/pods")
_COMPUTE: Final = (CPU, MEMORY)
_BOTH: Final = (CPU, MEMORY, EPHEMERAL_STORAGE)
"""Resources whose requests and limits are counted, the requests also without a prefix."""
_MUST_SPECIFY: Final = frozenset({CPU, MEMORY, *(f"{kind}{name}" for kind in (REQUESTS, LIMITS) for name in _COMPUTE)})
"""Resources that each container must name where a quota counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerResources:
    """What a container requests and is limited to."""

    name: str
    requests: Mapping[str, int]
    limits: Mapping[str, int]
    init: bool = False
    sidecar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAdmission:
    """The fields of a pod, or of a pod template, that its admission reads."""

    containers: tuple[ContainerResources, ...] = ()
    requests: Mapping[str, int]
    """At the pod's level."""
    limits: Mapping[str, int]
    """At the pod's level."""
    overhead: Mapping[str, int]
    priority_class: str = ""
    priority: int | None = None
    preemption_policy: str | None = None
    has_deadline: bool = False
    """Whether kubelet ends it (`activeDeadlineSeconds`)."""
    crosses_namespaces: bool = False
    """Whether its affinity to pods names other namespaces."""

    @property
    def is_best_effort(self) -> bool:
        """Return whether its QoS class is BestEffort."""
        listed = (self.requests, self.limits, *(each for c in self.containers for each in (c.requests, c.limits)))
        return not any(amounts.get(name) for amounts in listed for name in _COMPUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """The fields of a PriorityClass that admission writes into pods."""

    value: int = 0
    is_default: bool = False
    preempts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """One entry of a LimitRange for containers, or for pods."""

    name: str
    """The LimitRange."""
    of_pods: bool = False
    defaults: Mapping[str, int]
    """Limits of containers that have none."""
    default_requests: Mapping[str, int]
    least: Mapping[str, int]
    most: Mapping[str, int]
    ratios: Mapping[str, Decimal]
    """How many times the request a limit may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which pods a quota counts."""

    name: str
    operator: str = "Exists"
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A ResourceQuota."""

    name: str
    hard: Mapping[str, int]
    used: Mapping[str, int]
    scopes: tuple[Scope, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRules:
    """The LimitRanges and ResourceQuotas of a namespace."""

    ranges: tuple[LimitRange, ...] = ()
    quotas: tuple[Quota, ...] = ()
    default_class: str = ""
    """The PriorityClass of pods that name none."""


NO_RULES: Final = NamespaceRules()

_BY_CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""The prefix of resources that stand for a DeviceClass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAdmitted:
    """Why admission would not create pods."""

    why: str
    is_lasting: bool = True
    """Whether it stays although other pods of the namespace end."""


Counted = Iterable[tuple[PodAdmission, int]]
"""Pods, and how many of each."""


def refusal(pods: Counted, kept: Counted, rules: NamespaceRules) -> NotAdmitted | None:
    """Return why admission would not create all of some pods; None if it would.

    `kept`: further pods that do not exist either. What they need is counted as used.
    """
    created = [(_with_defaults(pod, rules), count) for pod, count in pods]
    for pod, _ in created:
        if why := next(_beyond_ranges(pod, rules.ranges), ""):
            return NotAdmitted(why=why)
    others = [(_with_defaults(pod, rules), count) for pod, count in kept]
    refusals = (_beyond_quota(quota, created, others) for quota in rules.quotas)
    return max(filter(None, refusals), key=lambda refused: refused.is_lasting, default=None)


def priority_of(pod: PodAdmission, classes: Mapping[str, PriorityClass]) -> tuple[int, bool] | None:
    """Return the priority that admission writes into a pod, and whether it preempts; None if its class is unknown.

    The plug-in Priority refuses a pod with another priority than its class has. But it does not check templates, so a
    higher one must not count there. A pod that is older than the default class may have a lower one.
    """
    named = classes.get(pod.priority_class) if pod.priority_class else _default(classes)
    if named is None:
        return None
    policy = pod.preemption_policy
    preempts = named.preempts if policy is None else policy != "Never"
    return (named.value if pod.priority is None else min(pod.priority, named.value)), preempts


def _default(classes: Mapping[str, PriorityClass]) -> PriorityClass:
    return next((each for each in classes.values() if each.is_default), PriorityClass())


# --- LimitRanges ----------------------------------------------------------------------------------------------------


def _with_defaults(pod: PodAdmission, rules: NamespaceRules) -> PodAdmission:
    """Return a pod with the default class, whose containers have the defaults of the namespace."""
    containers = pod.containers
    for each in rules.ranges:
        if each.defaults or each.default_requests:
            containers = tuple(
                replace(
                    container,
                    requests={**each.default_requests, **container.requests},
                    limits={**each.defaults, **container.limits},
                )
                for container in containers
            )
    return replace(pod, containers=containers, priority_class=pod.priority_class or rules.default_class)


def _beyond_ranges(pod: PodAdmission, ranges: Sequence[LimitRange]) -> Iterator[str]:
    """Yield how a pod is beyond the bounds of LimitRanges, in the words of the plug-in.

    With their defaults, a container may be invalid.
    """
    for container in pod.containers if ranges else ():
        for name, request in container.requests.items():
            limit = container.limits.get(name)
            if "/" in name and limit is None:
                yield f"with the defaults of LimitRanges, container {container.name} has no limit of {name}"
            if limit is not None and request > limit:
                yield f"with the defaults of LimitRanges, container {container.name} has less {name} than it requests"
    for each in ranges:
        if each.of_pods:
            held = _total(pod, limits=False), _total(pod, limits=True)
            yield from _beyond_range(each, "Pod", *held)
        else:
            for container in pod.containers:
                yield from _beyond_range(each, "Container", container.requests, container.limits)


def _beyond_range(
    bounds: LimitRange, kind: str, requests: Mapping[str, int], limits: Mapping[str, int]
) -> Iterator[str]:
    start = f"LimitRange {bounds.name}:"
    for name, least in bounds.least.items():
        request, limit = requests.get(name), limits.get(name)
        if request is None or min(request, least if limit is None else limit) < least:
            lowest = None if request is None else min(request, request if limit is None else limit)
            what = "no request is specified" if lowest is None else f"request is {_text(name, lowest)}"
            yield f"{start} minimum {name} usage per {kind} is {_text(name, least)}, but {what}"
    for name, most in bounds.most.items():
        request, limit = requests.get(name, 0), limits.get(name)
        if limit is None or max(request, limit) > most:
            what = "no limit is specified" if limit is None else f"limit is {_text(name, max(request, limit))}"
            yield f"{start} maximum {name} usage per {kind} is {_text(name, most)}, but {what}"
    for name, ratio in bounds.ratios.items():
        request, limit = requests.get(name, 0), limits.get(name, 0)
        if not request or not limit or limit > ratio * request:
            of = f"{_text(name, limit)} to {_text(name, request)}"
            yield f"{start} {name} max limit to request ratio per {kind} is {ratio.normalize():f}, but provided is {of}"


# --- ResourceQuotas -------------------------------------------------------------------------------------------------


def _beyond_quota(quota: Quota, pods: Counted, kept: Counted) -> NotAdmitted | None:
    counted = [(pod, count) for pod, count in pods if _is_counted(pod, quota)]
    for pod, _ in counted:
        if missing := sorted(_unspecified(pod, quota)):
            return NotAdmitted(why=f"failed quota: {quota.name}: must specify {', '.join(missing)}")
    needed = _needed(counted)
    others = _needed((pod, count) for pod, count in kept if _is_counted(pod, quota))
    found: list[NotAdmitted] = []
    for name, hard in quota.hard.items():
        used, more = quota.used.get(name, 0), needed.get(name, 0)
        if more and used + others.get(name, 0) + more > hard:
            of_others = f", kept for other pods: {name}={_text(name, others[name])}" if others.get(name) else ""
            found.append(
                NotAdmitted(
                    why=f"exceeded quota: {quota.name}, requested: {name}={_text(name, more)}, "
                    f"used: {name}={_text(name, used)}{of_others}, limited: {name}={_text(name, hard)}",
                    is_lasting=more > hard,
                )
            )
    return max(found, key=lambda refused: refused.is_lasting, default=None)


def _is_counted(pod: PodAdmission, quota: Quota) -> bool:
    """Return whether all scopes of a quota match a pod."""
    return all(_is_in(pod, scope) for scope in quota.scopes)


def _is_in(pod: PodAdmission, scope: Scope) -> bool:
    match scope.name:
        case "Terminating":
            return pod.has_deadline
        case "NotTerminating":
            return not pod.has_deadline
        case "BestEffort":
            return pod.is_best_effort
        case "NotBestEffort":
            return not pod.is_best_effort
        case "CrossNamespacePodAffinity":
            return pod.crosses_namespaces
        case "PriorityClass":
            return _selects(scope, pod.priority_class)
    return False


def _selects(scope: Scope, priority_class: str) -> bool:
    match scope.operator:
        case "In":
            return priority_class in scope.values
        case "NotIn":
            return priority_class not in scope.values
        case "DoesNotExist":
            return not priority_class
    return bool(priority_class)


def _unspecified(pod: PodAdmission, quota: Quota) -> set[str]:
    """Return the resources of a quota that some container of a pod does not name. None must if the pod names some."""
    missing = set[str]()
    if pod.requests or pod.limits:
        return missing
    for name in _MUST_SPECIFY & quota.hard.keys():
        resource, limited = name.removeprefix(REQUESTS).removeprefix(LIMITS), name.startswith(LIMITS)
        if any(resource not in (each.limits if limited else each.requests) for each in pod.containers):
            missing.add(name)
    return missing


def _needed(pods: Counted) -> Counter[str]:
    """Return what pods need of quotas together."""
    needed = Counter[str]()
    for pod, count in pods:
        for name, amount in _usage(pod).items():
            needed[name] += count * amount
    return needed


def _usage(pod: PodAdmission) -> Amounts:
    """Return what a pod needs of quotas. Resources in the domain of Kubernetes are not counted, as the plug-in does."""
    usage = dict.fromkeys(PODS, 1)
    for name, amount in _total(pod, limits=False).items():
        if name in _BOTH or name.startswith(HUGE_PAGES):
            usage |= {name: amount, f"{REQUESTS}{name}": amount}
        elif "/" in name and ("kubernetes.io/" not in name or name.startswith(_BY_CLASS)):
            usage[f"{REQUESTS}{name}"] = amount
    for name, amount in _total(pod, limits=True).items():
        if name in _BOTH:
            usage[f"{LIMITS}{name}"] = amount
    return usage


def _total(pod: PodAdmission, *, limits: bool) -> Amounts:
    """Return the requests, or the limits, of a whole pod."""
    of_containers = resources.combined(
        resources.Container(
            name=each.name, requests=each.limits if limits else each.requests, init=each.init, sidecar=each.sidecar
        )
        for each in pod.containers
    )
    total = {**of_containers, **(pod.limits if limits else pod.requests)}
    overhead = {name: amount for name, amount in pod.overhead.items() if not limits or total.get(name)}
    return resources.added(total, overhead)


def _text(name: str, amount: int) -> str:
    return quantity.of_resource(name.removeprefix(REQUESTS).removeprefix(LIMITS), amount)
