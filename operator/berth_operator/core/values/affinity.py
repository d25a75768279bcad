"""What a pod wants of the pods around it, and what they see of it.

All of it is read once, at the edge, into values: equal wishes are equal keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from berth_api.selectors import NOTHING, Labels, LabelSelector

LabelsOf = Callable[[str], Mapping[str, str]]
"""Gives a namespace's labels; of a namespace that nobody knows, none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What others see of a pod: by what selectors match it, and whose replica it is."""

    namespace: str = ""
    labels: Labels = ()
    controller: str = ""
    """UID of the ReplicaSet, ReplicationController or StatefulSet that it is a replica of, if any."""


NO_IDENTITY: Final = Identity()
"""What stands for a pod of which nobody asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Pods of some namespaces that a selector matches."""

    selector: LabelSelector
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector = NOTHING
    """Adds the namespaces whose labels it matches."""

    def include(self, namespace: str, labels: Mapping[str, str], labels_of: LabelsOf) -> bool:
        """Return whether a pod of this namespace with these labels is one of them."""
        if namespace in self.namespaces or self._selects(labels_of(namespace)):
            return self.selector.matches(labels)
        return False

    def reach(self, namespace: str, labels: Mapping[str, str], labels_of: LabelsOf) -> bool:
        """Tell the same as kube-scheduler does for the terms of the pod that it places.

        It looks up the selected namespaces, and then asks the selector once more without any labels: one that an
        unlabelled namespace would match (DoesNotExist, NotIn) reaches pods of all namespaces there.
        """
        if namespace in self.namespaces or self._selects({}) or self._selects(labels_of(namespace)):
            return self.selector.matches(labels)
        return False

    def _selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether a namespace with these labels is selected; nearly always there is no selector."""
        return self.namespace_selector is not NOTHING and self.namespace_selector.matches(labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Peers, and the label of nodes whose equal values make a domain."""

    key: str
    peers: Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A topology spread constraint: how evenly pods of one namespace lie over the domains of a key."""

    key: str
    selector: LabelSelector
    max_skew: int
    min_domains: int = 1
    honor_affinity: bool = True
    """Count only on nodes that the pod's node selector and node affinity allow."""
    honor_taints: bool = False
    """Count only on nodes whose taints the pod tolerates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """What a pod wants of the pods around it."""

    near: tuple[Term, ...] = ()
    """Required affinity: one pod must match all terms, in the node's domain of each key."""
    apart: tuple[Term, ...] = ()
    """Required anti-affinity."""
    preferred: tuple[tuple[Term, int], ...] = ()
    """(term, weight): preferred affinity, and with a negative weight preferred anti-affinity."""
    spread: tuple[Spread, ...] = ()
    """Where unsatisfiable: DoNotSchedule."""
    preferred_spread: tuple[Spread, ...] = ()
    """Where unsatisfiable: ScheduleAnyway."""


NO_AFFINITY: Final = Affinity()
"""Of nearly all pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSelection:
    """Pods that are counted together for the pod to be placed: those that are among all of these peers."""

    peers: tuple[Peers, ...]
    living: bool = False
    """Leave out pods that are terminating."""

    def includes(self, namespace: str, labels: Mapping[str, str], labels_of: LabelsOf) -> bool:
        """Return whether a pod of this namespace with these labels counts."""
        # A loop: see LabelSelector.matches.
        for peers in self.peers:  # noqa: SIM110
            if not peers.reach(namespace, labels, labels_of):
                return False
        return True
