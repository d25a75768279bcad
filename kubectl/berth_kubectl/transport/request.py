"""A request to the API server. It is separate from `proxy`, because completion does not load proxy's HTTP code."""

from dataclasses import dataclass
from urllib.parse import urlencode


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A path on the API server, with its query."""

    path: str
    query: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> str:
        """Return path and query as they are sent."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path
