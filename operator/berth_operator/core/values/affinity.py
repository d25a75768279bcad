"""A pod's affinity to other pods, its topology spread constraints, and what other pods' selectors see of it.

The pod's spec is parsed once into these values. Equal specs give equal values, so values can be keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from berth_api.values.selectors import NOTHING, Labels, LabelSelector

LabelsOf = Callable[[str], Mapping[str, str]]
"""Returns a namespace's labels, or no labels if the namespace is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What selectors match of a pod, and its controller."""

    namespace: str = ""
    labels: Labels = ()
    controller: str = ""
    """UID of the ReplicaSet, ReplicationController or StatefulSet that it is a replica of, if any."""


NO_IDENTITY: Final = Identity()
"""The identity of pods that no selector needs to match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Pods that a selector matches, in the listed and the selected namespaces."""

    selector: LabelSelector
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector = NOTHING
    """Adds the namespaces whose labels it matches."""

    def matches(self, namespace: str, labels: Mapping[str, str], labels_of: LabelsOf) -> bool:
        """Return whether a pod with these labels in this namespace is one of the peers."""
        if namespace in self.namespaces or self._selects(labels_of(namespace)):
            return self.selector.matches(labels)
        return False

    def matches_for_incoming_pod(self, namespace: str, labels: Mapping[str, str], labels_of: LabelsOf) -> bool:
        """Return whether a pod is one of the peers of the pod to be placed, as kube-scheduler saw it before 1.37.

        It resolves the selected namespaces, and then matches the namespace selector again with no labels.
        So a selector that matches an unlabelled namespace (DoesNotExist, NotIn) reaches the pods of all namespaces.
        """
        if namespace in self.namespaces or self._selects({}) or self._selects(labels_of(namespace)):
            return self.selector.matches(labels)
        return False

    def _selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether a namespace with these labels is selected."""
        return self.namespace_selector is not NOTHING and self.namespace_selector.matches(labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Peers, and the topology key: nodes with equal values of this label form a domain."""

    key: str
    peers: Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySpreadConstraint:
    """A topology spread constraint: how evenly pods of one namespace are spread over the domains of a key."""

    key: str
    selector: LabelSelector
    max_skew: int
    min_domains: int = 1
    honor_affinity: bool = True
    """Count pods only on nodes that match the pod's node selector and node affinity."""
    honor_taints: bool = False
    """Count pods only on nodes whose taints the pod tolerates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """A pod's affinity, anti-affinity and topology spread constraints."""

    required_affinity: tuple[Term, ...] = ()
    """Required affinity: a pod that matches all terms must be in the node's domain of each key."""
    required_anti_affinity: tuple[Term, ...] = ()
    """Required anti-affinity."""
    preferred_terms: tuple[tuple[Term, int], ...] = ()
    """(term, weight): preferred affinity, or preferred anti-affinity if the weight is negative."""
    topology_spread: tuple[TopologySpreadConstraint, ...] = ()
    """Constraints with `whenUnsatisfiable: DoNotSchedule`."""
    preferred_topology_spread: tuple[TopologySpreadConstraint, ...] = ()
    """Constraints with `whenUnsatisfiable: ScheduleAnyway`."""


NO_AFFINITY: Final = Affinity()
"""The affinity of nearly all pods: no terms and no constraints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSelection:
    """Pods that are counted together for the pod to be placed: the pods that match every one of these peers."""

    peers: tuple[Peers, ...]
    exclude_terminating: bool = False
    """Leave out pods that are terminating."""

    def includes(
        self, namespace: str, labels: Mapping[str, str], labels_of: LabelsOf, *, by_labels: bool = True
    ) -> bool:
        """Return whether a pod with these labels in this namespace counts; `by_labels` as from Kubernetes 1.37 on."""
        matches = Peers.matches if by_labels else Peers.matches_for_incoming_pod
        # A loop: see LabelSelector.matches.
        for peers in self.peers:  # noqa: SIM110
            if not matches(peers, namespace, labels, labels_of):
                return False
        return True
