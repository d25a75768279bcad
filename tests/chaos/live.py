"""The state that the history shows so far: which pods exist and are bound, and which replica leads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from devcluster import waiting
from tests.chaos.auditor import GANG
from tests.chaos.history import Kind, Revision

T = TypeVar("T")

PATIENCE: Final = 180.0
POLL: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePod:
    """A pod that exists."""

    name: str
    uid: str
    gang: str = ""
    node: str = ""
    bound_at: float = 0.0
    """When its bind was recorded, by the monotonic clock in seconds."""
    is_leaving: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict)
    """The object as stored."""


class Live:
    """The last revision of everything; written by the recorder's thread, read by any."""

    def __init__(self) -> None:
        self.pods: Mapping[str, LivePod] = {}
        """By name; replaced, never changed."""
        self.binds = 0
        self.term = 0
        self.holder = ""
        """Identity of the replica that holds the LeaderLease; empty if none does."""

    def take(self, revision: Revision) -> None:
        """Take one more revision."""
        if revision.kind is Kind.POD:
            self._take_pod(revision)
        elif revision.kind is Kind.LEASE:
            spec = {} if revision.object is None else revision.object["spec"]
            self.term, self.holder = int(spec.get("term", self.term)), str(spec.get("holderIdentity") or "")

    def until(self, predicate: Callable[[], T], *, what: str, details: Callable[[], str] | None = None) -> T:
        """Wait until a condition of this view holds; return its value."""
        return waiting.until(predicate, what=what, deadline=PATIENCE, poll=POLL, details=details)

    def until_bound(self, name: str, *, details: Callable[[], str] | None = None) -> LivePod:
        """Wait until a pod is bound."""
        self.until(
            lambda: (pod := self.pods.get(name)) is not None and pod.node, what=f"{name} to be bound", details=details
        )
        return self.pods[name]

    def _take_pod(self, revision: Revision) -> None:
        name = revision.name.partition("/")[2]
        if revision.object is None:
            self.pods = {other: pod for other, pod in self.pods.items() if other != name}
            return
        known = self.pods.get(name)
        pod = _live(name, revision.object, revision.time, known)
        if pod.node and not (known is not None and known.node):
            self.binds += 1
        self.pods = {**self.pods, name: pod}


def _live(name: str, raw: Mapping[str, Any], now: float, known: LivePod | None) -> LivePod:
    metadata, node = raw["metadata"], raw["spec"].get("nodeName") or ""
    was_bound = known is not None and bool(known.node)
    return LivePod(
        name=name,
        uid=metadata["uid"],
        gang=(metadata.get("annotations") or {}).get(GANG, ""),
        node=node,
        bound_at=known.bound_at if known is not None and was_bound else now if node else 0.0,
        is_leaving="deletionTimestamp" in metadata,
        raw=raw,
    )
