"""The LimitRanges, ResourceQuotas and PriorityClasses by which admission will create pods that do not exist yet."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Self

from berth_operator.core.values import pod_admission
from berth_operator.core.values.pod_admission import (
    NO_RULES,
    LimitRange,
    NamespaceRules,
    NotAdmitted,
    PodAdmission,
    PriorityClass,
    Quota,
)
from berth_operator.core.values.request import PendingPod

MAX_CHANGED: Final = 1024
"""Namespaces that are remembered one by one; a standby takes none, and namespaces come and go."""


class ChangedNamespaces:
    """Namespaces whose rules have changed since they were last taken."""

    def __init__(self, names: Collection[str] = (), *, are_all: bool = False) -> None:
        """Create a collection of some namespaces, or of all."""
        self._names, self._are_all = set(names), are_all

    def __contains__(self, namespace: str) -> bool:
        return self._are_all or namespace in self._names

    def __bool__(self) -> bool:
        return self._are_all or bool(self._names)

    def add(self, namespace: str) -> None:
        """Add a namespace."""
        self._names.add(namespace)
        if len(self._names) > MAX_CHANGED:
            self.add_all()

    def add_all(self) -> None:
        """Add all namespaces."""
        self._are_all = True
        self._names.clear()

    def take(self) -> Self:
        """Return what has changed, and begin again."""
        taken = type(self)(self._names, are_all=self._are_all)
        self._names, self._are_all = set(), False
        return taken


class AdmissionRules:
    """The rules of all namespaces."""

    def __init__(self) -> None:
        """Create rules that restrict nothing."""
        self.are_served: Callable[[], bool] = lambda: True
        """Returns whether the API server lets us read all of them."""
        self.priority_classes: dict[str, PriorityClass] = {}
        """Name -> PriorityClass."""
        self.on_classes: Callable[[], None] = lambda: None
        """Called after a PriorityClass has changed."""
        self._ranges: defaultdict[str, dict[str, tuple[LimitRange, ...]]] = defaultdict(dict)
        """Namespace -> name -> entries of the LimitRange."""
        self._quotas: defaultdict[str, dict[str, Quota]] = defaultdict(dict)
        """Namespace -> name -> ResourceQuota."""
        self.tightened = ChangedNamespaces()
        """Namespaces whose rules may refuse more pods than before; the keeper of gangs' places takes them."""
        self.tightened_for_workloads = ChangedNamespaces()
        """The same, for the keeper of workloads' places."""
        self.loosened = ChangedNamespaces()
        """Namespaces whose rules may refuse fewer pods than before; the keeper of workloads' places takes them."""

    # --- events -----------------------------------------------------------------------------------------------

    def put_limit_range(self, namespace: str, name: str, entries: tuple[LimitRange, ...]) -> None:
        """Add or update a LimitRange."""
        if self._ranges[namespace].get(name) != entries:
            self._ranges[namespace][name] = entries
            self._tighten(namespace)
            self.loosened.add(namespace)

    def remove_limit_range(self, namespace: str, name: str) -> None:
        """Remove a LimitRange."""
        self._ranges[namespace].pop(name, None)
        self.loosened.add(namespace)
        if not self._ranges[namespace]:
            del self._ranges[namespace]

    def put_quota(self, namespace: str, quota: Quota) -> None:
        """Add or update a ResourceQuota."""
        before = self._quotas[namespace].get(quota.name)
        self._quotas[namespace][quota.name] = quota
        # The first use of a new quota is shown later than the quota.
        if before is None or before.scopes != quota.scopes or quota.used.keys() - before.used.keys():
            self._tighten(namespace)
            self.loosened.add(namespace)
            return
        if _falls(before.hard, quota.hard):
            self._tighten(namespace)
        if _falls(quota.hard, before.hard) or _falls(before.used, quota.used):
            self.loosened.add(namespace)

    def remove_quota(self, namespace: str, name: str) -> None:
        """Remove a ResourceQuota."""
        self._quotas[namespace].pop(name, None)
        self.loosened.add(namespace)
        if not self._quotas[namespace]:
            del self._quotas[namespace]

    def put_priority_class(self, name: str, priority: PriorityClass) -> None:
        """Add or update a PriorityClass."""
        if self.priority_classes.get(name) != priority:
            self.priority_classes[name] = priority
            self.on_classes()

    def remove_priority_class(self, name: str) -> None:
        """Remove a PriorityClass; pods that exist keep their priority."""
        if self.priority_classes.pop(name, None) is not None:
            self.tightened.add_all()
            self.tightened_for_workloads.add_all()

    def _tighten(self, namespace: str) -> None:
        self.tightened.add(namespace)
        self.tightened_for_workloads.add(namespace)

    # --- what they say ----------------------------------------------------------------------------------------

    def of(self, namespace: str) -> NamespaceRules:
        """Return the rules of a namespace."""
        ranges, quotas = self._ranges.get(namespace), self._quotas.get(namespace)
        if not (ranges or quotas):
            return NO_RULES
        entries = tuple(entry for of_range in (ranges or {}).values() for entry in of_range)
        default = next((name for name, each in self.priority_classes.items() if each.is_default), "")
        return NamespaceRules(ranges=entries, quotas=tuple((quotas or {}).values()), default_class=default)

    def are_known(self) -> bool:
        """Return whether the rules are known. If not, no pods are evicted for pods that do not exist."""
        return self.are_served()

    def priority_of(self, pod: PodAdmission) -> tuple[int, bool] | None:
        """Return the priority that a pod will get, and whether it preempts; None if its class is not known."""
        return pod_admission.priority_of(pod, self.priority_classes) if self.are_known() else None

    def refusal(self, pods: Iterable[PendingPod], kept: Iterable[PendingPod] = ()) -> NotAdmitted | None:
        """Return why admission would not create all of some pods of one namespace; None if it would.

        `kept`: further pods for which places are kept. Of those, only pods of the same namespace count.
        """
        created = list(pods)
        if not created or not self.are_known():
            return None
        for pod, _ in _counted(created):
            if pod.priority_class and pod.priority_class not in self.priority_classes:
                return NotAdmitted(why=f"no PriorityClass with name {pod.priority_class} was found")
        if (rules := self.of(created[0].namespace)) is NO_RULES:
            return None
        others = (pod for pod in kept if pod.namespace == created[0].namespace)
        return pod_admission.refusal(_counted(created), _counted(others), rules)


def _falls(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Return whether a quota has a bound that it had not, or a lower one."""
    return any(name not in before or amount < before[name] for name, amount in after.items())


def _counted(pods: Iterable[PendingPod]) -> list[tuple[PodAdmission, int]]:
    """Return what admission reads of pods, and how many are equal; many share one object."""
    by_id: dict[int, tuple[PodAdmission, int]] = {}
    for pod in pods:
        if pod.admission is not None:
            known, count = by_id.get(id(pod.admission), (pod.admission, 0))
            by_id[id(pod.admission)] = known, count + 1
    return list(by_id.values())
