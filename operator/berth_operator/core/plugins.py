"""What scores and choosers of cards look like: the built-in ones, and those that a policy brings along."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from berth_api.allocation import Grant
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest


class Score(Protocol):
    """What every score module offers."""

    NAME: str

    def score(self, fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
        """Give each row's score, 0 to 100, or None where all are equal; rows that do not fit may hold any number."""


class Chooser(Protocol):
    """What chooses the cards of a node. One that is a score, too, may choose as it scored."""

    def choose(self, fleet: Fleet, row: int, request: PodRequest) -> tuple[Grant, ...]:
        """Give the cards for every part of the request; the row has passed every filter."""
