"""The check of kubelet's requests against what it is offered."""

from collections.abc import Iterable, Sequence
from typing import Final

from berth_agent.vendor import Offer, RefusedError
from berth_api.allocation import REPLICA_MARK

MAX_SHOWN: Final = 160
"""Characters of an unknown id that an error shows; the id of a replica has fewer."""


class InvalidRequestError(RefusedError):
    """Kubelet requests devices that are not offered. The text is NVIDIA's."""


class OfferedIds:
    """The ids of an offer. They allow checking requests in a time that depends on the offer alone."""

    def __init__(self, offer: Offer) -> None:
        self._resource, self._known = offer.resource, frozenset(unit.id for unit in offer.units)

    def check(self, ids: Sequence[str], *, one_at_most: bool) -> None:
        """Check that a request is for offered units, each once.

        Raises:
            InvalidRequestError: it is not.
        """
        wrong = f'invalid allocation request for "{self._resource}": invalid request: '
        if len(ids) > len(self._known):
            raise InvalidRequestError(f"{wrong}{len(ids)} devices; offered are {len(self._known)}")
        for device in ids:
            if device not in self._known:
                shown = device if len(device) <= MAX_SHOWN else f"{device[:MAX_SHOWN]}... ({len(device)} characters)"
                raise InvalidRequestError(f"{wrong}unknown device: {shown}")
        if one_at_most and len(ids) > 1 and any(REPLICA_MARK in device for device in ids):
            raise InvalidRequestError(f"{wrong}maximum request size for shared resources is 1; found {len(ids)}")

    def only(self, ids: Iterable[str]) -> list[str]:
        """Return the ids that are offered."""
        return [device for device in ids if device in self._known]
