"""Which Services select a pod: those that do say which other pods do the same work."""

from typing import Final

from berth_api.selectors import NOTHING, Labels, LabelSelector, Requirement
from berth_operator.core.values.affinity import Identity

MAX_ANSWERS: Final = 4096
"""Identities for which the answer is remembered."""


class Services:
    """The selectors of all Services."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Labels]] = {}
        """Namespace -> name -> labels that the Service selects."""
        self._answers: dict[Identity, LabelSelector] = {}

    def put(self, key: str, selected: Labels) -> None:
        """Take a Service (namespace/name) as it is; one that selects nothing is as good as gone."""
        namespace, _, name = key.partition("/")
        self._answers.clear()
        there = self._of.setdefault(namespace, {})
        there.pop(name, None)
        if selected:
            there[name] = selected
        if not there:
            del self._of[namespace]

    def beside(self, identity: Identity) -> LabelSelector:
        """Return the pods that are behind all the Services which a pod is behind; nothing if there are none."""
        if identity.namespace not in self._of:
            return NOTHING
        found = self._answers.get(identity)
        if found is None:
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            found = self._answers[identity] = self._merged(identity)
        return found

    def _merged(self, identity: Identity) -> LabelSelector:
        labels = set(identity.labels)
        selecting = (set(each) for each in self._of[identity.namespace].values() if labels.issuperset(each))
        merged = sorted(set().union(*selecting))
        requirements = tuple(Requirement(key=key, values=(value,)) for key, value in merged)
        return LabelSelector(requirements=requirements) if requirements else NOTHING
