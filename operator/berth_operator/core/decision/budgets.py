"""PodDisruptionBudgets: how many pods of an application may be taken from it now."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berth_api.selectors import LabelSelector
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import Identity
from berth_operator.core.values.charge import Charge

MAX_ANSWERS: Final = 2**16
"""Identities for which the answer is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A PodDisruptionBudget."""

    namespace: str
    selector: LabelSelector
    allowed: int = 0
    """Pods that may go now."""
    disrupted: frozenset[str] = frozenset()
    """Names of pods that are counted as gone already."""


class Budgets:
    """All of them, by whom they protect."""

    def __init__(self, budgets: Mapping[str, Budget] | None = None) -> None:
        self._of: dict[str, dict[str, Budget]] = {}
        """Namespace -> key -> budget."""
        self._answers: dict[int, tuple[Identity, tuple[Budget, ...]]] = {}
        """By the identity's own number, since its labels take long to hash; replicas share one."""
        for key, each in (budgets or {}).items():
            self.put(key, each)

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, key: str, budget: Budget) -> None:
        """Take a budget (namespace/name) as it is."""
        self.remove(key)
        self._of.setdefault(budget.namespace, {})[key] = budget

    def remove(self, key: str) -> None:
        """A budget is gone."""
        self._answers.clear()
        namespace = key.partition("/")[0]
        there = self._of.get(namespace, {})
        there.pop(key, None)
        if not there:
            self._of.pop(namespace, None)

    def protecting(self, identity: Identity) -> tuple[Budget, ...]:
        """Return the budgets that count a pod."""
        there = self._of.get(identity.namespace)
        if there is None:
            return ()
        known = self._answers.get(id(identity))
        if known is None:
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            labels = dict(identity.labels)
            found = tuple(each for each in there.values() if each.selector.matches(labels))
            # The identity is kept with its answer: nobody else gets its number meanwhile.
            known = self._answers[id(identity)] = (identity, found)
        return known[1]

    def counting(self, charge: Charge) -> tuple[Budget, ...]:
        """Return the budgets in which a placed pod is one that is still there."""
        name = charge.pod.partition("/")[2]
        return tuple(each for each in self.protecting(charge.identity) if name not in each.disrupted)

    def spent(self, fleet: Fleet) -> Counter[Budget]:
        """Count the pods of each budget that were told to leave and of which it cannot know yet."""
        told_to = (fleet.charges.get(uid) for uid in fleet.leaving)
        unknown = [each for each in told_to if each is not None and not each.terminating]
        return Counter(budget for each in unknown for budget in self.counting(each))
