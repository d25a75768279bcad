"""Which pods are where, as other pods' selectors see them: counts per node, kept by every charge and release.

* A *population* is all pods with the same namespace and labels. A selector is asked once for a population, never for
  a pod.
* A *crowd* is what a pod to be placed asks for: the pods that its terms match. Its line of counts is made with the
  first question, kept current from then on, and dropped when it has not been asked for longest.
* A term is *held* while a placed pod has it: here the question is the other way round, which of the held terms match
  the pod to be placed.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Self, TypeVar

from berth_api.selectors import NOTHING
from berth_operator.core.fleet.copies import with_own
from berth_operator.core.fleet.replicas import Replicas
from berth_operator.core.fleet.services import Services
from berth_operator.core.fleet.tally import Counts, Tally
from berth_operator.core.values.affinity import Affinity, Identity, PodSelection, Term

MAX_SELECTIONS: Final = 1024
"""Crowds counted at once: 20 MB at 5,000 nodes."""
MAX_ANSWERS: Final = 4096
"""Identities for which the matching held terms are remembered."""
HARD_WEIGHT: Final = 1
"""How much a placed pod's required affinity draws the pods that it matches; kube-scheduler's default."""

K = TypeVar("K", bound=Hashable)
Weighted = tuple[Term, int]


@dataclass(slots=True, kw_only=True)
class PodGroupByLabels:
    """The placed pods with one namespace and one set of labels."""

    namespace: str
    labels: Mapping[str, str]
    terminating: bool
    rows: Counter[int] = field(default_factory=Counter)
    """Row -> number of pods on it."""
    lines: list[int] = field(default_factory=list)
    """The lines of the crowds that it is part of."""

    def copy(self) -> "PodGroupByLabels":
        """Return a population that can change without this one."""
        return replace(self, rows=self.rows.copy(), lines=self.lines.copy())


class Held(Generic[K]):
    """The terms of placed pods, and on which nodes their holders are."""

    def __init__(self, rows: int, term_of: Callable[[K], Term]) -> None:
        self._term_of = term_of
        self._holders: Counter[K] = Counter()
        self._by_label: dict[tuple[str, str] | None, dict[K, None]] = {}
        """The held terms by a label that their selectors require, and those that require none by None."""
        self._answers: dict[Identity, tuple[K, ...]] = {}
        self.tally: Tally[K] = Tally(rows)

    def place(self, row: int, keys: Iterable[K], sign: int) -> None:
        """Count one more pod (or one less) that holds these terms."""
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
        """Return the held terms that match a pod."""
        if not self._holders:
            return ()
        found = self._answers.get(identity)
        if found is None:
            if len(self._answers) >= MAX_ANSWERS:
                self.forget()
            found = self._answers[identity] = tuple(self._ask(identity, labels_of))
        return found

    def copy(self) -> Self:
        """Return terms that can change without these."""
        return with_own(
            self,
            _holders=self._holders.copy(),
            _by_label={handle: keys.copy() for handle, keys in self._by_label.items()},
            _answers=self._answers.copy(),
            tally=self.tally.copy(),
        )

    def forget(self) -> None:
        """Drop remembered answers: a term or a namespace is no longer what it was."""
        self._answers.clear()

    def _ask(self, identity: Identity, labels_of: Callable[[str], Mapping[str, str]]) -> Iterable[K]:
        labels = dict(identity.labels)
        known = (self._by_label.get(each, ()) for each in (None, *identity.labels))
        candidates = (key for keys in known for key in keys)
        return (key for key in candidates if self._term_of(key).peers.include(identity.namespace, labels, labels_of))

    def _handle(self, key: K) -> tuple[str, str] | None:
        return self._term_of(key).peers.selector.handle

    def _drop(self, key: K) -> None:
        handle = self._handle(key)
        del self._by_label[handle][key]
        if not self._by_label[handle]:
            del self._by_label[handle]


class AffinityIndex:
    """All placed pods."""

    def __init__(self, rows: int) -> None:
        self._groups: dict[str, dict[tuple[Identity, bool], PodGroupByLabels]] = {}
        """Namespace -> (identity, whether terminating) -> population."""
        self._crowds: Tally[PodSelection] = Tally(rows)
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self.repelling: Held[Term] = Held(rows, lambda term: term)
        """Required anti-affinity of placed pods."""
        self.drawing: Held[Weighted] = Held(rows, lambda weighted: weighted[0])
        """What placed pods prefer, and what they require to be near."""
        self.replicas = Replicas(rows)
        self.services = Services()
        """No what-if changes them."""

    def place(self, row: int, identity: Identity, affinity: Affinity, *, terminating: bool, sign: int) -> None:
        """Count one more pod on a row, or one less."""
        population = self._group_of(identity, terminating=terminating)
        for line in population.lines:
            self._crowds.counts[line, row] += sign
        population.rows[row] += sign
        if identity.controller and not terminating:
            self.replicas.place(row, identity.controller, sign)
        if not population.rows[row]:
            del population.rows[row]
            if not population.rows:
                self._drop_group(identity, terminating=terminating)
        if affinity.apart:
            self.repelling.place(row, affinity.apart, sign)
        if affinity.preferred or affinity.near:
            self.drawing.place(row, (*affinity.preferred, *((each, HARD_WEIGHT) for each in affinity.near)), sign)

    def count(self, crowd: PodSelection) -> Counts:
        """Return the number of pods per row that are in the crowd; read-only."""
        line = self._crowds.touch(crowd)
        if line is None:
            line = self._count_anew(crowd)
        return self._crowds.line(line)

    def includes(self, crowd: PodSelection, identity: Identity) -> bool:
        """Return whether a pod would count in the crowd."""
        return crowd.includes(identity.namespace, dict(identity.labels), self.labels_of)

    def covers(self, term: Term, identity: Identity) -> bool:
        """Return whether a placed pod's term matches a pod."""
        return term.peers.include(identity.namespace, dict(identity.labels), self.labels_of)

    def existing_anti_affinity_keys(self, identity: Identity) -> set[str]:
        """Return the topology keys by which placed pods require to be apart from such a pod."""
        return {term.key for term in self.repelling.matching(identity, self.labels_of)}

    def existing_anti_affinity(self, identity: Identity) -> Iterator[tuple[str, Counts]]:
        """Return for each key the number of pods per row that require to be apart from such a pod."""
        for key, terms in _by_key(self.repelling.matching(identity, self.labels_of), lambda term: term.key):
            yield key, self.repelling.tally.sum(terms)

    def existing_preferred(self, identity: Identity) -> Iterator[tuple[str, Counts]]:
        """Return for each key how much the pods on each row draw such a pod, or push it away where negative."""
        for key, terms in _by_key(self.drawing.matching(identity, self.labels_of), lambda each: each[0].key):
            yield key, self.drawing.tally.sum(terms, [weight for _, weight in terms])

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> bool:
        """Take a namespace's labels, none if it is gone; tell whether they are new."""
        if self._namespaces.get(name, {}) == labels:
            return False
        self._namespaces[name] = labels
        if not labels:
            del self._namespaces[name]
        for crowd in tuple(self._crowds.lines):
            self._drop(crowd)
        self.repelling.forget()
        self.drawing.forget()
        return True

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Return a namespace's labels."""
        return self._namespaces.get(namespace, {})

    def copy(self) -> Self:
        """Return neighbours that can change without these."""
        populations = {
            namespace: {key: population.copy() for key, population in there.items()}
            for namespace, there in self._groups.items()
        }
        return with_own(
            self,
            _groups=populations,
            _crowds=self._crowds.copy(),
            _namespaces=self._namespaces.copy(),
            repelling=self.repelling.copy(),
            drawing=self.drawing.copy(),
            replicas=self.replicas.copy(),
        )

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        for tally in (self._crowds, self.repelling.tally, self.drawing.tally, self.replicas):
            tally.grow(rows)

    def _group_of(self, identity: Identity, *, terminating: bool) -> PodGroupByLabels:
        there = self._groups.setdefault(identity.namespace, {})
        found = there.get((identity, terminating))
        if found is None:
            found = PodGroupByLabels(
                namespace=identity.namespace, labels=dict(identity.labels), terminating=terminating
            )
            found.lines = [line for crowd, line in self._crowds.lines.items() if self._is_part(found, crowd)]
            there[identity, terminating] = found
        return found

    def _drop_group(self, identity: Identity, *, terminating: bool) -> None:
        there = self._groups[identity.namespace]
        del there[identity, terminating]
        if not there:
            del self._groups[identity.namespace]

    def _is_part(self, population: PodGroupByLabels, crowd: PodSelection) -> bool:
        if crowd.living and population.terminating:
            return False
        return crowd.includes(population.namespace, population.labels, self.labels_of)

    def _count_anew(self, crowd: PodSelection) -> int:
        if len(self._crowds) >= MAX_SELECTIONS:
            self._drop(next(iter(self._crowds.lines)))
        line = self._crowds.add(crowd)
        for population in self._within(crowd):
            if self._is_part(population, crowd):
                population.lines.append(line)
                self._crowds.counts[line, list(population.rows)] += list(population.rows.values())
        return line

    def _within(self, crowd: PodSelection) -> Iterator[PodGroupByLabels]:
        """Return the populations of the namespaces that the crowd may reach."""
        first = crowd.peers[0]
        for namespace in self._groups if first.namespace_selector != NOTHING else first.namespaces:
            yield from self._groups.get(namespace, {}).values()

    def _drop(self, crowd: PodSelection) -> None:
        line = self._crowds.drop(crowd)
        for population in self._within(crowd):
            if line in population.lines:
                population.lines.remove(line)


def _by_key(found: Sequence[K], key_of: Callable[[K], str]) -> Iterable[tuple[str, list[K]]]:
    groups: dict[str, list[K]] = {}
    for each in found:
        groups.setdefault(key_of(each), []).append(each)
    return groups.items()
