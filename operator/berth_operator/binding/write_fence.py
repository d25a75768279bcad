"""The fence of status writes. Their field manager is the leader's term, and the API server refuses other terms.

For a status write, the API server takes the metadata from the stored object. So no other field could carry the term.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog

from berth_api import names
from berth_client.errors import ApiError

NO_TERM: Final = 0
"""Never a valid term: terms begin at 1."""

Send = Callable[[Mapping[str, str]], Awaitable[Any]]
"""Sends a write with these query parameters."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NotFencedError(Exception):
    """No policy refuses what a leader of the past writes."""


class WriteFence:
    """The fence of one kind of writes."""

    def __init__(self, *, lease: str, what: str, required: bool) -> None:
        """Create a fence of writes of `what`. If `required`, none is sent unless writes of other terms are refused."""
        self._lease, self._what, self._required = lease, what, required
        self._tested_for = NO_TERM

    def manager(self, term: int) -> str:
        """Return the field manager of the writes of a term."""
        return f"{self._lease}/{term}"

    async def check(self, term: int, send: Send) -> None:
        """Test once for each term, as a dry run of this write, that the API server refuses it in another term.

        Raises:
            NotFencedError: it does not, and must.
            CallError: the write was refused for another reason, or not answered.
        """
        if term == self._tested_for:
            return
        try:
            await send({"fieldManager": self.manager(NO_TERM), "dryRun": "All"})
        except ApiError as error:
            if names.FENCE not in error.message:
                raise
        else:
            if self._required:
                raise NotFencedError(f"no policy {names.FENCE}-{self._what} refuses what a leader of the past writes")
            log.warning("no fence is installed: the API server would accept writes of a past term", of=self._what)
        self._tested_for = term
