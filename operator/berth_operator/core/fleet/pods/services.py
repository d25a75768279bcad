"""The Services that select a pod. Pods behind the same Services are spread by default."""

from typing import Final

from berth_api.values.caching import SizedCache
from berth_api.values.selectors import NOTHING, Labels, LabelSelector, Requirement
from berth_operator.core.values.affinity import Identity

MAX_BYTES: Final = 2**23
"""Bytes of the cache of the selectors of identities."""


class Services:
    """The selectors of all Services."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Labels]] = {}
        """Namespace -> name -> the Service's selector."""
        self._selectors: SizedCache[Identity, LabelSelector] = SizedCache(MAX_BYTES)

    def put(self, key: str, selected: Labels) -> None:
        """Add, replace or, if it selects nothing, remove a Service (namespace/name)."""
        namespace, _, name = key.partition("/")
        self._selectors.clear()
        services = self._of.setdefault(namespace, {})
        services.pop(name, None)
        if selected:
            services[name] = selected
        if not services:
            del self._of[namespace]

    def selector_of(self, identity: Identity) -> LabelSelector:
        """Return a selector for the pods that all the Services of a pod select; NOTHING if the pod has no Service."""
        if identity.namespace not in self._of:
            return NOTHING
        selector = self._selectors.get(identity)
        if selector is None:
            selector = self._merged(identity)
            self._selectors.put(identity, selector)
        return selector

    def _merged(self, identity: Identity) -> LabelSelector:
        labels = set(identity.labels)
        selecting = (set(selector) for selector in self._of[identity.namespace].values() if labels.issuperset(selector))
        merged = sorted(set().union(*selecting))
        requirements = tuple(Requirement(key=key, values=(value,)) for key, value in merged)
        return LabelSelector(requirements=requirements) if requirements else NOTHING
