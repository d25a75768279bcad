"""Whether the API server answers with lower versions of a resource than before: then it shows an earlier state.

Two kinds of answers count: the object that a create has written, and a list at quorum. Both have versions at least as
high as all that were answered before they were requested. An update that changes nothing is answered with a version of
long ago, and watches and cached reads may lag behind. Versions that are no integers have no order.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

_NAMESPACE: Final = re.compile(r"/namespaces/[^/]+(?=/)")
_UNORDERED: Final = ("resourceVersion", "continue", "dryRun", "watch")
"""Parameters of requests whose answers do not count."""


class Requested(NamedTuple):
    """A request whose answer may count."""

    resource: str
    """The path of all objects of the resource."""
    least: int
    """The highest version that was known when it was sent."""


class Versions:
    """The highest version of each resource that is listed or created; there are as many as kinds."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}
        self.on_earlier: Callable[[str], None] = lambda _why: None
        """Called with the reason if the API server shows an earlier state."""

    def forget(self) -> None:
        """Forget all versions, because they may be of another state than what is read from now on."""
        self._highest.clear()

    def request(self, method: str, path: str, params: Mapping[str, str] | None) -> Requested | None:
        """Return what to compare the answer with; None if the answer does not count."""
        if method not in ("GET", "POST") or not (params or {}).keys().isdisjoint(_UNORDERED):
            return None
        resource = _NAMESPACE.sub("", path)
        # /api/v1/pods, /apis/apps/v1/deployments; what is longer names an object, as each Binding does.
        if resource.count("/") != (3 if path.startswith("/api/") else 4):
            return None
        return Requested(resource, self._highest.get(resource, 0))

    def compare(self, requested: Requested, answer: Any) -> None:
        """Compare the version of an answer, if it is a list or a created object."""
        match answer:
            case {"metadata": {"resourceVersion": str(text)}} if text.isdecimal():
                version = int(text)
            case _:
                return
        if version < requested.least:
            self.on_earlier(f"{requested.resource} has the version {version}, it had {requested.least}")
        elif version > self._highest.get(requested.resource, 0):
            self._highest[requested.resource] = version
