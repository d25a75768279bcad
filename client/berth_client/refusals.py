"""The writes that the API server refuses for good, until they succeed or are no longer tried.

A refusal is for good if another try cannot help until a person acts: a policy, a webhook or the rights refuse the
write, or the server finds it invalid. These answers are left out, because they pass without that:

* 409, 429 and server errors, 401 after a token was renewed, and 404 for an object that is gone
* a ResourceQuota that is used up, and a namespace that is being deleted
* the fence, which refuses Bindings of a past term

Refusals are grouped by verb, resource, status and refuser. The server's message is shown and never compared, because it
may have a name or a time in it.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Generic, NamedTuple, TypeVar

from berth_api import names
from berth_api.values.backoff import ExponentialBackoff
from berth_client.errors import ApiError, CallError

KEPT_SECONDS: Final = 900.0
"""Seconds for which a refusal is kept; each write is tried more often than that as long as it is needed."""
MAX_GROUPS: Final = 32
MAX_NAMESPACES: Final = 16
MAX_OBJECTS: Final = 16
"""Of one group in one namespace. Of groups, namespaces and objects beyond a limit, the latest are kept."""
BACKOFF: Final = ExponentialBackoff(first=1.0, longest=60.0)
"""Between two tries of a write that is refused for good."""
MAX_PAUSES: Final = 4096
"""Writes whose pauses are kept. The oldest makes way, and is tried again sooner."""
CERTAIN: Final = 3
"""Refusals of one object in a row that are for good, if the server does not name the refuser: fewer may be a race."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_LATER: Final = {
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.GONE,
    HTTPStatus.TOO_MANY_REQUESTS,
}
_PASSES: Final = ("exceeded quota: ", "because it is being terminated")
_FENCE: Final = f"validatingadmissionpolicy/{names.FENCE}"


class Write(NamedTuple):
    """What is refused, and by what."""

    verb: str
    """As RBAC calls it."""
    resource: str
    """As `kubectl auth can-i` takes it: `pods/binding`, `devices.berth.dev/status`."""
    status: int
    refuser: str
    """As in `ApiError.refuser`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalGroup:
    """A group of refusals."""

    write: Write
    namespaces: tuple[str, ...]
    """Of the objects, sorted; none for objects without a namespace."""
    object: str
    """One of the objects: its name, or namespace/name; of a write that creates one, only the namespace."""
    message: str
    """What the server answered about this object. Both stay until its write succeeds, so that reports are stable."""
    since: float
    last: float
    """Seconds since 1970."""

    @property
    def is_own(self) -> bool:
        """Return whether the objects are of Berth's own kinds, or the Leases of its agents."""
        resource = self.write.resource.partition("/")[0]
        return resource.endswith(f".{names.GROUP}") or resource == "leases.coordination.k8s.io"

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels of the metric."""
        verb, resource, status, refuser = self.write
        return verb, resource, str(status), refuser, self.scope

    @property
    def reach(self) -> int:
        """Return the number of namespaces; 1 for objects without one."""
        return max(1, len(self.namespaces))

    @property
    def scope(self) -> str:
        """Return `own`, `cluster` for other objects without a namespace, or `namespaced`."""
        if self.is_own:
            return "own"
        return "namespaced" if self.namespaces else "cluster"


@dataclass(slots=True, kw_only=True)
class _Object:
    count: int = 0
    last: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Group:
    message: str = ""
    object: str = ""
    path: str = ""
    """Of the write that `message` is about."""
    since: float
    last: float = 0.0
    namespaces: dict[str, dict[str, _Object]] = field(default_factory=dict)
    """Namespace, empty for objects without one -> path of a write -> its refusals; the latest come last."""


def is_for_good(error: BaseException | None) -> bool:
    """Return whether another try cannot help until a person acts."""
    if not isinstance(error, CallError) or not error.is_refused or error.status in _LATER or error.is_missing:
        return False
    return not error.refuser.startswith(_FENCE) and not any(text in str(error) for text in _PASSES)


class RefusedWrites:
    """The refused writes of the clients of a program, which may be in several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Create an empty table. `clock` returns seconds since 1970."""
        self._clock = clock
        self._groups: dict[Write, _Group] = {}
        """The latest refused comes last."""
        self._lock = threading.Lock()
        self.shown: tuple[RefusalGroup, ...] = ()
        """The groups after the last refusal; replaced, never changed."""

    def current(self) -> Collection[RefusalGroup]:
        """Return the groups that are not too old."""
        oldest = self._clock() - KEPT_SECONDS
        return [refused for refused in self.shown if refused.last >= oldest]

    def answered(self, method: str, path: str, error: ApiError | None) -> None:
        """Take the answer to a write: an error, or None for a success."""
        if error is not None and is_for_good(error):
            with self._lock:
                self._refused(method, path, error)
        elif error is None and self._groups:
            with self._lock:
                self._succeeded(method, path)

    def _refused(self, method: str, path: str, error: ApiError) -> None:
        now = self._clock()
        resource, namespace, name = _parts(path)
        write = Write(_VERBS.get(method, method.lower()), resource, error.status, error.refuser)
        group = self._groups.pop(write, None) or _Group(since=now)
        self._groups[write] = group
        group.last = now
        if not any(group.path in objects for objects in group.namespaces.values()):
            group.path, group.message = path, error.message
            group.object = "/".join(filter(None, (namespace, name)))
        objects = group.namespaces.pop(namespace, {})
        group.namespaces[namespace] = objects
        refused = objects.pop(path, None) or _Object()
        objects[path] = refused
        refused.count, refused.last = refused.count + 1, now
        _bound(objects, MAX_OBJECTS)
        _bound(group.namespaces, MAX_NAMESPACES)
        _bound(self._groups, MAX_GROUPS)
        self._show()

    def _succeeded(self, method: str, path: str) -> None:
        """Drop the refusals of a write that succeeds now."""
        verb, (resource, namespace, _) = _VERBS.get(method, method.lower()), _parts(path)
        was_refused = False
        for write, group in self._groups.items():
            if write.verb == verb and write.resource == resource and path in group.namespaces.get(namespace, ()):
                del group.namespaces[namespace][path]
                was_refused = True
        if was_refused:
            self._show()

    def _show(self) -> None:
        """Drop what is too old, and replace `shown`."""
        oldest = self._clock() - KEPT_SECONDS
        for write, group in [*self._groups.items()]:
            for namespace, objects in [*group.namespaces.items()]:
                for path in [path for path, refused in objects.items() if refused.last < oldest]:
                    del objects[path]
                if not objects:
                    del group.namespaces[namespace]
            if not group.namespaces:
                del self._groups[write]
        self.shown = tuple(
            RefusalGroup(
                write=write,
                namespaces=tuple(sorted(filter(None, group.namespaces))),
                object=group.object,
                message=group.message,
                since=group.since,
                last=group.last,
            )
            for write, group in self._groups.items()
            if write.refuser or write.status == HTTPStatus.FORBIDDEN or _is_certain(group.namespaces)
        )


class Pauses(Generic[_Key]):
    """When writes that were refused for good may be tried again: after 1, 2, 4 and finally every 60 s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty table. `clock` returns seconds."""
        self._clock = clock
        self._refused: dict[_Key, tuple[float, float, CallError]] = {}
        """Key of a write -> when to try it again, the pause before that, and the refusal."""

    def refusal(self, key: _Key) -> CallError | None:
        """Return why a write may not be tried yet; None if it may."""
        until, _, error = self._refused.get(key, (0.0, 0.0, None))
        return error if self._clock() < until else None

    def failed(self, key: _Key, error: CallError) -> None:
        """Pause a write that was refused for good, and no other."""
        if not is_for_good(error):
            self.end(key)
            return
        _, last, _ = self._refused.pop(key, (0.0, 0.0, error))
        pause = BACKOFF.following(last)
        self._refused[key] = self._clock() + pause, pause, error
        _bound(self._refused, MAX_PAUSES)

    def end(self, key: _Key) -> None:
        """Forget a write that succeeded."""
        self._refused.pop(key, None)


def _is_certain(namespaces: Mapping[str, Mapping[str, _Object]]) -> bool:
    return any(refused.count >= CERTAIN for objects in namespaces.values() for refused in objects.values())


def _bound(kept: dict[_Key, _Value], most: int) -> None:
    """Drop the first entry if there is one too many."""
    if len(kept) > most:
        del kept[next(iter(kept))]


def _parts(path: str) -> tuple[str, str, str]:
    """Return the resource with its group and subresource, the namespace and the name of a path of the API server."""
    _, api, *rest = path.split("/")
    group = ""
    if api == "apis" and rest:
        group, *rest = rest
    _, *rest = rest or [""]  # the version
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":  # noqa: PLR2004 - otherwise it is the Namespace itself
        _, namespace, *rest = rest
    plural, name, subresource = (*rest, "", "", "")[:3]
    resource = f"{plural}.{group}" if group else plural
    return (f"{resource}/{subresource}" if subresource else resource), namespace, name
