"""Which cards of a node a pod gets, and how much of each."""

from typing import Protocol

from berth_api.allocation import Grant
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest


class Chooser(Protocol):
    """What chooses cards."""

    def choose(self, fleet: Fleet, row: int, request: PodRequest) -> tuple[Grant, ...]:
        """Give the cards for every part of the request; the row has passed every filter."""
