"""Placed pods as selectors match them: counts per node, updated by every charge and release.

* A *group* is all placed pods with the same namespace and labels. A selector is evaluated once per group, not per pod.
* A *selection* is the set of pods that the terms of a pending pod match. Its line of counts is computed when it is
  first read, then updated. It is dropped when it is the least recently used line.
* *Existing terms* are the terms of placed pods. They are matched in the other direction, against the pending pod.
"""

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Self, TypeVar

from berth_api.values.caching import SizedCache
from berth_api.values.selectors import NOTHING
from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.fleet.arrays.tally import Counts, Tally
from berth_operator.core.fleet.pods.replicas import Replicas
from berth_operator.core.fleet.pods.services import Services
from berth_operator.core.values.affinity import Affinity, Identity, PodSelection, Term

MAX_SELECTIONS: Final = 1024
"""Maximum number of selections with a line of counts: 20 MB at 5,000 nodes."""
MAX_CACHED: Final = 2**23
"""Bytes of the cache of the terms that match identities."""
LABEL_BYTES: Final = 600
"""Upper limit of the size of a label, by the limits of the API server; `size_of` would take longer than the search."""
HARD_WEIGHT: Final = 1
"""The score weight of placed pods' required affinity; kube-scheduler's default for `hardPodAffinityWeight`."""

K = TypeVar("K", bound=Hashable)
Weighted = tuple[Term, int]


@dataclass(slots=True, kw_only=True)
class PodGroupByLabels:
    """The placed pods with one namespace and one set of labels."""

    identity: Identity
    labels: Mapping[str, str]
    terminating: bool
    owner: object
    """The mark of the index that may change the group; others that are copies of it share the group."""
    rows: Counter[int] = field(default_factory=Counter)
    """Row -> number of pods on it."""
    lines: list[int] = field(default_factory=list)
    """The lines of the selections that include the group."""

    def copy(self, owner: object) -> "PodGroupByLabels":
        """Return an independent copy that another index may change."""
        return replace(self, rows=self.rows.copy(), lines=self.lines.copy(), owner=owner)


class ExistingTerms(Generic[K]):
    """The terms of placed pods, with the number of pods per node that have each term."""

    def __init__(self, rows: int, term_of: Callable[[K], Term]) -> None:
        self._term_of = term_of
        self._holders: Counter[K] = Counter()
        self._by_label: dict[tuple[str, str] | None, dict[K, None]] = {}
        """The terms by one label that their selectors require; None has the terms that require no label."""
        self._matching: SizedCache[Identity, tuple[K, ...]] = SizedCache(MAX_CACHED)
        self.tally: Tally[K] = Tally(rows)

    def place(self, row: int, keys: Iterable[K], sign: int) -> None:
        """Add (sign 1) or remove (sign -1) a pod on a row that has these terms."""
        for key in keys:
            if key not in self._holders:
                self.tally.add(key)
                self._by_label.setdefault(self._handle(key), {})[key] = None
                self.forget()
            self._holders[key] += sign
            self.tally.counts[self.tally.lines[key], row] += sign
            if not self._holders[key]:
                del self._holders[key]
                self.tally.drop(key)
                self._drop(key)
                self.forget()

    def matching(self, identity: Identity, labels_of: Callable[[str], Mapping[str, str]]) -> tuple[K, ...]:
        """Return the terms of placed pods that match a pod."""
        if not self._holders:
            return ()
        terms = self._matching.get(identity)
        if terms is None:
            terms = tuple(self._find_matching(identity, labels_of))
            # The terms are those of placed pods, and take no memory of their own.
            self._matching.put(identity, terms, LABEL_BYTES * (1 + len(identity.labels)) + sys.getsizeof(terms))
        return terms

    def copy(self) -> Self:
        """Return an independent copy."""
        return with_own(
            self,
            _holders=self._holders.copy(),
            _by_label={handle: keys.copy() for handle, keys in self._by_label.items()},
            _matching=SizedCache(MAX_CACHED),
            tally=self.tally.copy(),
        )

    def forget(self) -> None:
        """Clear cached results after a term or a namespace changed."""
        self._matching.clear()

    def _find_matching(self, identity: Identity, labels_of: Callable[[str], Mapping[str, str]]) -> Iterable[K]:
        labels = dict(identity.labels)
        known = (self._by_label.get(label, ()) for label in (None, *identity.labels))
        candidates = (key for keys in known for key in keys)
        return (key for key in candidates if self._term_of(key).peers.matches(identity.namespace, labels, labels_of))

    def _handle(self, key: K) -> tuple[str, str] | None:
        return self._term_of(key).peers.selector.handle

    def _drop(self, key: K) -> None:
        handle = self._handle(key)
        del self._by_label[handle][key]
        if not self._by_label[handle]:
            del self._by_label[handle]


class AffinityIndex:
    """The affinity of all placed pods, and counts of the pods that selectors match."""

    by_labels = True
    """Whether selections match namespaces by labels alone, as from Kubernetes 1.37 on; set before there are pods."""

    def __init__(self, rows: int) -> None:
        self._groups: dict[str, dict[tuple[Identity, bool], PodGroupByLabels]] = {}
        """Namespace -> (identity, whether terminating) -> group."""
        self._mark = object()
        """A mark that is replaced with each copy, because the copies share all groups until one of them changes a
        group."""
        self._selections: Tally[PodSelection] = Tally(rows)
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self.anti_affinity_terms: ExistingTerms[Term] = ExistingTerms(rows, lambda term: term)
        """Required anti-affinity of placed pods."""
        self.preferred_terms: ExistingTerms[Weighted] = ExistingTerms(rows, lambda weighted: weighted[0])
        """Preferred terms and required affinity of placed pods, with their weights."""
        self.replicas = Replicas(rows)
        self.services = Services()
        """Copies share it, because no what-if changes Services."""

    def place(self, row: int, identity: Identity, affinity: Affinity, *, terminating: bool, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) a pod on a row."""
        group = self._group_of(identity, terminating=terminating)
        for line in group.lines:
            self._selections.counts[line, row] += sign
        group.rows[row] += sign
        if identity.controller and not terminating:
            self.replicas.place(row, identity.controller, sign)
        if not group.rows[row]:
            del group.rows[row]
            if not group.rows:
                self._drop_group(identity, terminating=terminating)
        if affinity.required_anti_affinity:
            self.anti_affinity_terms.place(row, affinity.required_anti_affinity, sign)
        if affinity.preferred_terms or affinity.required_affinity:
            self.preferred_terms.place(
                row, (*affinity.preferred_terms, *((term, HARD_WEIGHT) for term in affinity.required_affinity)), sign
            )

    def count(self, selection: PodSelection) -> Counts:
        """Return the number of the selection's pods per row; read-only."""
        line = self._selections.touch(selection)
        if line is None:
            line = self._add_line(selection)
        return self._selections.line(line)

    def includes(self, selection: PodSelection, identity: Identity) -> bool:
        """Return whether the selection includes a pod with this identity."""
        return self._matches(selection, identity.namespace, dict(identity.labels))

    def matches(self, term: Term, identity: Identity) -> bool:
        """Return whether a placed pod's term matches a pod."""
        return term.peers.matches(identity.namespace, dict(identity.labels), self.labels_of)

    def existing_anti_affinity_keys(self, identity: Identity) -> set[str]:
        """Return the topology keys of placed pods' required anti-affinity terms that match a pod."""
        return {term.key for term in self.anti_affinity_terms.matching(identity, self.labels_of)}

    def existing_anti_affinity(self, identity: Identity) -> Iterator[tuple[str, Counts]]:
        """Yield (topology key, number of pods per row whose required anti-affinity matches a pod)."""
        for key, terms in _by_key(self.anti_affinity_terms.matching(identity, self.labels_of), lambda term: term.key):
            yield key, self.anti_affinity_terms.tally.sum(terms)

    def existing_preferred(self, identity: Identity) -> Iterator[tuple[str, Counts]]:
        """Yield (topology key, sum per row of the weights of placed pods' preferred terms that match a pod)."""
        for key, terms in _by_key(
            self.preferred_terms.matching(identity, self.labels_of), lambda weighted: weighted[0].key
        ):
            yield key, self.preferred_terms.tally.sum(terms, [weight for _, weight in terms])

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> bool:
        """Set a namespace's labels, empty if it was deleted; return whether they changed."""
        if self._namespaces.get(name, {}) == labels:
            return False
        self._namespaces[name] = labels
        if not labels:
            del self._namespaces[name]
        for selection in tuple(self._selections.lines):
            self._drop(selection)
        self.anti_affinity_terms.forget()
        self.preferred_terms.forget()
        return True

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Return a namespace's labels."""
        return self._namespaces.get(namespace, {})

    def copy(self) -> Self:
        """Return an independent copy."""
        self._mark = object()
        return with_own(
            self,
            _groups={namespace: groups.copy() for namespace, groups in self._groups.items()},
            _mark=object(),
            _selections=self._selections.copy(),
            _namespaces=self._namespaces.copy(),
            anti_affinity_terms=self.anti_affinity_terms.copy(),
            preferred_terms=self.preferred_terms.copy(),
            replicas=self.replicas.copy(),
        )

    def grow(self, rows: int) -> None:
        """Enlarge to this number of rows."""
        for tally in (self._selections, self.anti_affinity_terms.tally, self.preferred_terms.tally, self.replicas):
            tally.grow(rows)

    def _group_of(self, identity: Identity, *, terminating: bool) -> PodGroupByLabels:
        groups = self._groups.setdefault(identity.namespace, {})
        group = groups.get((identity, terminating))
        if group is not None:
            return self._owned(group)
        group = PodGroupByLabels(
            identity=identity, labels=dict(identity.labels), terminating=terminating, owner=self._mark
        )
        group.lines = [line for selection, line in self._selections.lines.items() if self._is_part(group, selection)]
        groups[identity, terminating] = group
        return group

    def _owned(self, group: PodGroupByLabels) -> PodGroupByLabels:
        """Return a group to be changed."""
        if group.owner is not self._mark:
            key = group.identity, group.terminating
            group = self._groups[group.identity.namespace][key] = group.copy(self._mark)
        return group

    def _drop_group(self, identity: Identity, *, terminating: bool) -> None:
        groups = self._groups[identity.namespace]
        del groups[identity, terminating]
        if not groups:
            del self._groups[identity.namespace]

    def _is_part(self, group: PodGroupByLabels, selection: PodSelection) -> bool:
        if selection.exclude_terminating and group.terminating:
            return False
        return self._matches(selection, group.identity.namespace, group.labels)

    def _matches(self, selection: PodSelection, namespace: str, labels: Mapping[str, str]) -> bool:
        return selection.includes(namespace, labels, self.labels_of, by_labels=self.by_labels)

    def _add_line(self, selection: PodSelection) -> int:
        if len(self._selections) >= MAX_SELECTIONS:
            self._drop(next(iter(self._selections.lines)))
        line = self._selections.add(selection)
        for group in self._within(selection):
            if self._is_part(group, selection):
                self._owned(group).lines.append(line)
                self._selections.counts[line, list(group.rows)] += list(group.rows.values())
        return line

    def _within(self, selection: PodSelection) -> Iterator[PodGroupByLabels]:
        """Yield the groups of the namespaces that the selection may include."""
        first = selection.peers[0]
        for namespace in self._groups if first.namespace_selector != NOTHING else first.namespaces:
            yield from self._groups.get(namespace, {}).values()

    def _drop(self, selection: PodSelection) -> None:
        line = self._selections.drop(selection)
        for group in self._within(selection):
            if line in group.lines:
                self._owned(group).lines.remove(line)


def _by_key(terms: Sequence[K], key_of: Callable[[K], str]) -> Iterable[tuple[str, list[K]]]:
    groups: dict[str, list[K]] = {}
    for term in terms:
        groups.setdefault(key_of(term), []).append(term)
    return groups.items()
