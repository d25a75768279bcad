"""The token of a list in chunks: where the next chunk begins. Pure functions.

The client keeps the token, and the server keeps nothing between two chunks. A token contains the version of the list
and the place of the last object that the client received. It has the form of the API server's tokens.
"""

import base64
import binascii
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final, Self

import orjson

from berth_operator.apis.aggregated.kinds import Place
from berth_operator.apis.aggregated.statuses import StatusError, bad_request

TOKEN_VERSION: Final = "meta.k8s.io/v1"  # noqa: S105 - of its form
NEWEST: Final = -1
"""Stands for a version: the list continues in the newest version, which may differ from the earlier chunks."""
MAX_VERSION: Final = 2**63 - 1
INVALID: Final = "continue key is not valid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Where a list continues."""

    version: int
    """The version of the list, or `NEWEST`."""
    after: Place

    def encode(self) -> str:
        """Return the token."""
        rank, key = self.after
        fields = {"v": TOKEN_VERSION, "rv": self.version, "start": f"{rank}/{key}"}
        return base64.urlsafe_b64encode(orjson.dumps(fields)).rstrip(b"=").decode()

    @classmethod
    def decode(cls, token: str) -> Self:
        """Read a token.

        Raises:
            StatusError: this API has not written the token. The message uses Kubernetes' words.
        """
        version, start = _fields(token)
        rank, separator, key = start.partition("/")
        if not (separator and rank.isascii() and rank.isdecimal() and len(rank) <= len(str(MAX_VERSION))):
            raise _refused(f"{INVALID}: {start}")
        return cls(version=version, after=(int(rank), key))

    def expired(self) -> StatusError:
        """Return the failure if the version is no longer known, with a token for the newest; Kubernetes' words."""
        return StatusError(
            HTTPStatus.GONE,
            "Expired",
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter, or use the continue token in this response to retrieve the remainder of "
            "the results. Continuing with the provided token results in an inconsistent list - objects that were "
            "created, modified, or deleted between the time the first chunk was returned and now may show up in the "
            "list.",
            token=replace(self, version=NEWEST).encode(),
        )


def _fields(token: str) -> tuple[int, str]:
    """Return version and start of a token, which are of the right types."""
    try:
        fields: Any = orjson.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise _refused(f"{INVALID}: {error}") from error
    if not isinstance(fields, dict):
        raise _refused(f"{INVALID}: not an object")
    if fields.get("v") != TOKEN_VERSION:
        raise _refused(f"{INVALID}: server does not recognize this encoded version {fields.get('v')}")
    version, start = fields.get("rv"), fields.get("start")
    if type(version) is not int or not (version == NEWEST or 0 < version <= MAX_VERSION):
        raise _refused(f"{INVALID}: incorrect encoded start resourceVersion (version {TOKEN_VERSION})")
    if not isinstance(start, str) or not start:
        raise _refused(f"{INVALID}: encoded start key empty (version {TOKEN_VERSION})")
    return version, start


def _refused(problem: str) -> StatusError:
    return bad_request(f"invalid continue token: {problem}")
