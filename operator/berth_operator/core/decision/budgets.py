"""PodDisruptionBudgets: how many pods of an application may be evicted now."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from berth_api.values.caching import SizedCache, size_of
from berth_api.values.selectors import LabelSelector
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import Identity
from berth_operator.core.values.charge import Charge

MAX_BYTES: Final = 2**23
"""Bytes of the cache of the budgets of identities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A PodDisruptionBudget."""

    namespace: str
    selector: LabelSelector
    allowed: int = 0
    """Pods that may be evicted now (`status.disruptionsAllowed`)."""
    disrupted: frozenset[str] = frozenset()
    """Names of pods that the status already counts as evicted (`status.disruptedPods`)."""


class Budgets:
    """All PodDisruptionBudgets, with lookup by pod."""

    def __init__(self, budgets: Mapping[str, Budget] | None = None) -> None:
        self._of: dict[str, dict[str, Budget]] = {}
        """Namespace -> key -> budget."""
        self._matching: SizedCache[int, tuple[Identity, tuple[Budget, ...]]] = SizedCache(MAX_BYTES)
        """Matches by `id()` of the identity, because hashing its labels is slow. Replicas share one identity."""
        for key, budget in (budgets or {}).items():
            self.put(key, budget)

    def __bool__(self) -> bool:
        return bool(self._of)

    def copy(self) -> "Budgets":
        """Return an independent copy."""
        return Budgets({key: budget for budgets in self._of.values() for key, budget in budgets.items()})

    def put(self, key: str, budget: Budget) -> None:
        """Add a budget, or replace the budget with the same key (namespace/name)."""
        self.remove(key)
        self._of.setdefault(budget.namespace, {})[key] = budget

    def remove(self, key: str) -> None:
        """Forget a deleted budget."""
        self._matching.clear()
        namespace = key.partition("/")[0]
        budgets = self._of.get(namespace, {})
        budgets.pop(key, None)
        if not budgets:
            self._of.pop(namespace, None)

    def protecting(self, identity: Identity) -> tuple[Budget, ...]:
        """Return the budgets whose selector matches a pod."""
        budgets = self._of.get(identity.namespace)
        if budgets is None:
            return ()
        cached = self._matching.get(id(identity))
        if cached is None:
            labels = dict(identity.labels)
            matching = tuple(budget for budget in budgets.values() if budget.selector.matches(labels))
            # Keep a reference to the identity, so that no other object can get its id() meanwhile.
            cached = (identity, matching)
            self._matching.put(id(identity), cached, size_of(identity) + sys.getsizeof(matching))
        return cached[1]

    def counting(self, charge: Charge) -> tuple[Budget, ...]:
        """Return the budgets that count a placed pod as not yet evicted."""
        name = charge.pod.partition("/")[2]
        return tuple(budget for budget in self.protecting(charge.identity) if name not in budget.disrupted)

    def violations(self, victims: Iterable[Charge], spent: Counter[Budget]) -> int:
        """Return how many victims violate a budget of which so many pods are spent. The first use up the budgets."""
        used, violating = spent.copy(), 0
        for victim in victims:
            protecting = self.counting(victim)
            violating += any(used[budget] >= budget.allowed for budget in protecting)
            used.update(protecting)
        return violating

    def spent(self, fleet: Fleet) -> Counter[Budget]:
        """Count for each budget the pods that are being evicted and that its status does not count yet."""
        evicted = (fleet.charges.get(uid) for uid in fleet.leaving)
        uncounted = [charge for charge in evicted if charge is not None and not charge.terminating]
        return Counter(budget for charge in uncounted for budget in self.counting(charge))
