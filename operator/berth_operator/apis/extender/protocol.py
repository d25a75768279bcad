"""Read and write the JSON of extenders (k8s.io/kube-scheduler/extender/v1).

The Go types have no JSON tags, so the keys are the names of Go fields. Berth writes them exactly. It reads them in any
case, as Go's decoder does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from berth_api import resources
from berth_api.request import Kinds
from berth_api.values import keys
from berth_operator.core.values.request import PendingPod
from berth_operator.state.objects import pods

Object = Mapping[str, Any]

MAX_BYTES: Final = 64 * 2**20
"""Bytes of a request at most: 5,000 whole Nodes of 12 KiB, for kube-schedulers without `nodeCacheCapable`."""
MAX_UID: Final = 128


class ProtocolError(ValueError):
    """A request does not follow the protocol. The text names the field and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArgs:
    """A request for filter or prioritize (`ExtenderArgs`)."""

    pod: Object
    names: Sequence[str]
    """Each name once, in the order of the request."""
    nodes: Mapping[str, Object] | None = None
    """Name -> Node; None if the request has only names (`nodeCacheCapable: true`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """An answer to filter."""

    names: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptArgs:
    """A request for preempt (`ExtenderPreemptionArgs`)."""

    pod: Object
    victims: Mapping[str, Sequence[str]]
    """Name of a node -> UIDs of the victims that kube-scheduler has chosen there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The victims on a node."""

    uids: Sequence[str]
    violations: int
    """How many of the victims violate a PodDisruptionBudget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindArgs:
    """A request for bind (`ExtenderBindingArgs`)."""

    namespace: str
    name: str
    uid: str
    node: str

    @property
    def key(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"


# --- requests -------------------------------------------------------------------------------------------------------


def node_args(body: bytes) -> NodeArgs:
    """Read a request for filter or prioritize.

    Raises:
        ProtocolError: the body is not a valid request.
    """
    raw = _decoded(body)
    pod, names, nodes = _pod(raw), _get(raw, "NodeNames"), _get(raw, "Nodes")
    if names is not None:
        if not set(map(type, _list(names, "NodeNames"))) <= {str}:
            raise ProtocolError("NodeNames: must have only strings")
        return NodeArgs(pod=pod, names=_unique(names))
    if nodes is None:
        return NodeArgs(pod=pod, names=())
    items = _list(_get(_object(nodes, "Nodes"), "Items") or [], "Nodes.items")
    by_name = {}
    for node in items:
        metadata = _object(_object(node, "Nodes.items").get("metadata"), "Nodes.items.metadata")
        by_name[_string(metadata.get("name"), "Nodes.items.metadata.name")] = node
    return NodeArgs(pod=pod, names=list(by_name), nodes=by_name)


def preempt_args(body: bytes) -> PreemptArgs:
    """Read a request for preempt, with the victims' UIDs or with whole pods.

    Raises:
        ProtocolError: the body is not a valid request.
    """
    raw = _decoded(body)
    for key in ("NodeNameToMetaVictims", "NodeNameToVictims"):
        if victims := _get(raw, key):
            by_node = _object(victims, key)
            pod = _pod(raw)
            uids = {node: _victims(of_node, f"{key}.{node}") for node, of_node in by_node.items()}
            return PreemptArgs(pod=pod, victims=uids)
    return PreemptArgs(pod=_pod(raw), victims={})


def bind_args(body: bytes) -> BindArgs:
    """Read a request for bind.

    Raises:
        ProtocolError: the body is not a valid request.
    """
    raw = _decoded(body)
    return BindArgs(
        namespace=_name(raw, "PodNamespace"),
        name=_name(raw, "PodName"),
        uid=_check_uid(_get(raw, "PodUID"), "PodUID"),
        node=_name(raw, "Node"),
    )


def read_pod(raw: Object, kinds: Kinds, scheduler: str) -> PendingPod:
    """Read the pod of a request. `scheduler` is the default for its scheduler's name.

    Raises:
        ProtocolError: the value is not a pod.
    """
    try:
        spec = {"schedulerName": scheduler, **resources.from_limits(raw["spec"])}
        nominated = _object(raw.get("status") or {}, "Pod.status").get("nominatedNodeName") or ""
        status = {"nominatedNodeName": _string(nominated, "Pod.status.nominatedNodeName")}
        pod = {"metadata": dict(raw["metadata"]), "spec": spec, "status": status}
        return pods.pending(pods.transform(pod), kinds)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ProtocolError(f"Pod: is no valid pod: {type(error).__name__}: {error}") from error


def _pod(raw: Object) -> Object:
    pod = _object(_get(raw, "Pod"), "Pod")
    metadata = _object(pod.get("metadata"), "Pod.metadata")
    for key in ("namespace", "name"):
        _check_name(metadata.get(key), f"Pod.metadata.{key}")
    _check_uid(metadata.get("uid"), "Pod.metadata.uid")
    spec = _object(pod.get("spec"), "Pod.spec")
    _list(spec.get("containers"), "Pod.spec.containers")
    _string(spec.get("schedulerName") or "", "Pod.spec.schedulerName")
    if not isinstance(priority := spec.get("priority") or 0, int):
        raise ProtocolError(f"Pod.spec.priority: must be a whole number, not {_kind(priority)}")
    return pod


def _victims(raw: Any, where: str) -> list[str]:
    uids = []
    for pod in _list(_get(_object(raw, where), "Pods") or [], f"{where}.Pods"):
        victim = _object(pod, f"{where}.Pods")
        metadata = victim.get("metadata")
        uid = _get(victim, "UID") if metadata is None else _object(metadata, f"{where}.Pods.metadata").get("uid")
        uids.append(_check_uid(uid, f"{where}.Pods.UID"))
    return _unique(uids)


def _decoded(body: bytes) -> Object:
    try:
        return _object(orjson.loads(body), "the body")
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"the body is not JSON: {error}") from error


def _get(raw: Object, key: str) -> Any:
    """Return a field, whose key may be in upper or lower case; None if it is missing."""
    if key in raw:
        return raw[key]
    lower = key.lower()
    return next((value for name, value in raw.items() if name.lower() == lower), None)


def _name(raw: Object, key: str) -> str:
    return _check_name(_get(raw, key), key)


def _check_name(value: Any, where: str) -> str:
    if not keys.NAME.fullmatch(text := _string(value, where)):
        shown = f'"{text[:64]}"' + ("..." if len(text) > 64 else "")  # noqa: PLR2004
        raise ProtocolError(f"{where}: must be a name of Kubernetes, not {shown}")
    return text


def _check_uid(value: Any, where: str) -> str:
    text = _string(value, where)
    if not 0 < len(text) <= MAX_UID:
        raise ProtocolError(f"{where}: must have 1 to {MAX_UID} characters, not {len(text)}")
    return text


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ProtocolError(f"{where}: must be a string, not {_kind(value)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ProtocolError(f"{where}: must be a list, not {_kind(value)}")
    return value


def _object(value: Any, where: str) -> Object:
    if not isinstance(value, dict):
        raise ProtocolError(f"{where}: must be an object, not {_kind(value)}")
    return value


def _unique(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _kind(value: Any) -> str:
    return {type(None): "missing", dict: "an object", list: "a list", str: "a string", bool: "a boolean"}.get(
        type(value), "a number"
    )


# --- answers --------------------------------------------------------------------------------------------------------


def filter_answer(args: NodeArgs, result: FilterResult) -> bytes:
    """Write an `ExtenderFilterResult`, in the form of its request: Nodes or NodeNames."""
    nodes = None if args.nodes is None else {"items": [args.nodes[name] for name in result.names]}
    return orjson.dumps(
        {
            "Nodes": nodes,
            "NodeNames": None if args.nodes is not None else list(result.names),
            "FailedNodes": result.failed,
            "FailedAndUnresolvableNodes": result.unresolvable,
            "Error": result.error,
        }
    )


def prioritize_answer(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """Write a `HostPriorityList`."""
    return orjson.dumps([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])


def preempt_answer(victims: Mapping[str, Victims]) -> bytes:
    """Write an `ExtenderPreemptionResult`."""
    by_node = {
        node: {"Pods": [{"UID": uid} for uid in of_node.uids], "NumPDBViolations": of_node.violations}
        for node, of_node in victims.items()
    }
    return orjson.dumps({"NodeNameToMetaVictims": by_node})


def bind_answer(error: str) -> bytes:
    """Write an `ExtenderBindingResult`; the error is empty on success."""
    return orjson.dumps({"Error": error})
