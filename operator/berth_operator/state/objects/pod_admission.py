"""Read what admission knows: LimitRanges, ResourceQuotas, PriorityClasses, and the fields of pods that it reads."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from berth_api.resources import CPU, quantity
from berth_api.values.caching import compact, sized_cache
from berth_operator.core.values.pod_admission import (
    LIMITS,
    REQUESTS,
    ContainerResources,
    LimitRange,
    PodAdmission,
    PriorityClass,
    Quota,
    Scope,
)

Object = Mapping[str, Any]

CACHED: Final = 2**22
"""Bytes of the cache of what was read: the replicas of an application are equal."""
_OF_POD: Final = (
    "resources",
    "overhead",
    "priorityClassName",
    "priority",
    "preemptionPolicy",
    "activeDeadlineSeconds",
    "affinity",
)
_OF_CONTAINER: Final = ("name", "resources", "restartPolicy")


def of_pod(spec: Object) -> PodAdmission:
    """Read the spec of a pod, or of a template. Equal ones share one object.

    Raises:
        QuantityError: an amount is no quantity.
    """
    fields = {name: spec[name] for name in _OF_POD if spec.get(name) is not None}
    for kind in ("initContainers", "containers"):
        fields[kind] = [
            {name: container[name] for name in _OF_CONTAINER if container.get(name) is not None}
            for container in spec.get(kind) or ()
        ]
    return _of_fields(compact(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)))


@sized_cache(CACHED)
def _of_fields(fields: bytes) -> PodAdmission:
    spec = orjson.loads(fields)
    at_pod_level = _with_requests(spec.get("resources"))
    priority = spec.get("priority")
    return PodAdmission(
        containers=(
            *(_container(each, init=True) for each in spec["initContainers"]),
            *(_container(each, init=False) for each in spec["containers"]),
        ),
        requests=_amounts(at_pod_level.get("requests")),
        limits=_amounts(at_pod_level.get("limits")),
        overhead=_amounts(spec.get("overhead")),
        priority_class=str(spec.get("priorityClassName") or ""),
        priority=None if priority is None else int(priority),
        preemption_policy=spec.get("preemptionPolicy"),
        has_deadline="activeDeadlineSeconds" in spec,
        crosses_namespaces=any(
            term.get("namespaces") or term.get("namespaceSelector") is not None for term in _terms(spec)
        ),
    )


def _container(raw: Object, *, init: bool) -> ContainerResources:
    held = _with_requests(raw.get("resources"))
    return ContainerResources(
        name=str(raw.get("name") or ""),
        requests=_amounts(held.get("requests")),
        limits=_amounts(held.get("limits")),
        init=init,
        sidecar=init and raw.get("restartPolicy") == "Always",
    )


def _with_requests(held: Object | None) -> Object:
    """Return resources with missing requests set to the limits, as the API server does before admission."""
    limits = (held or {}).get("limits") or {}
    return {"limits": limits, "requests": {**limits, **((held or {}).get("requests") or {})}}


def _terms(spec: Object) -> Iterator[Object]:
    """Yield the terms of a pod's affinity to pods."""
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        yield from terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for preferred in terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield preferred.get("podAffinityTerm") or {}


def read_limit_range(raw: Object) -> tuple[LimitRange, ...]:
    """Read the entries of a LimitRange that concern pods.

    Raises:
        QuantityError: an amount is no quantity.
    """
    return tuple(
        LimitRange(
            name=raw["metadata"]["name"],
            of_pods=limit["type"] == "Pod",
            defaults=_amounts(limit.get("default")),
            default_requests=_amounts(limit.get("defaultRequest")),
            least=_amounts(limit.get("min")),
            most=_amounts(limit.get("max")),
            ratios={
                name: quantity.exact(str(ratio)) for name, ratio in (limit.get("maxLimitRequestRatio") or {}).items()
            },
        )
        for limit in (raw.get("spec") or {}).get("limits") or ()
        if limit["type"] in ("Pod", "Container")
    )


def read_quota(raw: Object) -> Quota:
    """Read a ResourceQuota.

    Raises:
        QuantityError: an amount is no quantity.
    """
    spec = raw.get("spec") or {}
    selected = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return Quota(
        name=raw["metadata"]["name"],
        hard=_amounts(spec.get("hard")),
        used=_amounts((raw.get("status") or {}).get("used")),
        scopes=(
            *(Scope(name=str(name)) for name in spec.get("scopes") or ()),
            *(
                Scope(
                    name=each["scopeName"],
                    operator=each["operator"],
                    values=frozenset(map(str, each.get("values") or ())),
                )
                for each in selected
            ),
        ),
    )


def read_priority_class(raw: Object) -> PriorityClass:
    """Read a PriorityClass."""
    return PriorityClass(
        value=int(raw.get("value") or 0),
        is_default=bool(raw.get("globalDefault")),
        preempts=raw.get("preemptionPolicy") != "Never",
    )


def _amounts(raw: Mapping[str, Any] | None) -> dict[str, int]:
    """Return amounts with zeros: a quota of zero is none that is missing."""
    return {name: _amount(name, value) for name, value in (raw or {}).items()}


def _amount(name: str, value: str | int) -> int:
    is_cpu = name.removeprefix(REQUESTS).removeprefix(LIMITS) == CPU
    return quantity.parse_milli(value) if is_cpu else quantity.parse(value)
