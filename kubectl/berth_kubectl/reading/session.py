"""Read lists through a proxy in parallel. A refusal's message names the right that is missing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from berth_kubectl.errors import ReadError
from berth_kubectl.reading.objects import Object
from berth_kubectl.reading.resources import Resource, named
from berth_kubectl.transport.proxy import server_time
from berth_kubectl.transport.request import Request

Lists = list[list[Object] | None]
"""The objects of each source; None for an optional one that cannot be read."""


class ObjectReader(Protocol):
    """The subset of `Proxy` that is used."""

    server_date: str

    def get_all(self, requests: Sequence[Request]) -> list[Any]:
        """Return the answer or the ReadError of each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A list of objects."""

    resource: Resource
    namespace: str = ""
    """Empty for all namespaces."""
    labels: str = ""
    """Label selector."""
    fields: str = ""
    """Field selector."""
    limit: int = 0
    """Maximum number of objects; 0 for all."""
    optional: bool = False
    """Whether the command can do without it."""

    @property
    def request(self) -> Request:
        """Return the request for the list."""
        return self.resource.request(
            self.namespace,
            labelSelector=self.labels,
            fieldSelector=self.fields,
            limit=str(self.limit) if self.limit else "",
        )

    def refused(self, error: ReadError) -> ReadError:
        """Return an error that names the right that is missing."""
        return named(error, self.resource.right("list", self.namespace))


@dataclass(slots=True, kw_only=True)
class Session:
    """One run of a command."""

    api: ObjectReader
    namespace: str = ""
    """The namespace that was chosen; empty for all."""
    notes: list[str] = field(default_factory=list)
    """What the user should know about the answer."""

    def now(self) -> datetime:
        """Return the time by the API server's clock."""
        return server_time(self.api.server_date)

    def lists(self, sources: Sequence[Source]) -> Lists:
        """Return the objects of each source.

        Raises:
            ReadError: a source that is not optional cannot be read.
        """
        answers = self.api.get_all([source.request for source in sources])
        lists: Lists = []
        for source, answer in zip(sources, answers, strict=True):
            if not isinstance(answer, ReadError):
                lists.append(list(answer["items"]))
            elif source.optional and (answer.is_forbidden or answer.is_missing):
                lists.append(None)
            else:
                raise source.refused(answer)
        return lists

    def object(self, resource: Resource, namespace: str, name: str, subresource: str = "") -> Object:
        """Return one object.

        Raises:
            ReadError: it cannot be read.
        """
        [answer] = self.api.get_all([resource.request(namespace, name, subresource)])
        if isinstance(answer, ReadError):
            raise named(answer, resource.right("get", namespace, subresource))
        return dict(answer)
