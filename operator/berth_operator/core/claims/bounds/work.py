"""How much may still be computed about claims before the operator's loop must do something else."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Work:
    """Work in devices that are examined, about a microsecond each; unlimited by default.

    Copies of the Fleet share it, because what-ifs take the loop's time as well.
    """

    def __init__(self, left: float = math.inf) -> None:
        self.left = left
        self.within_limits = 0.0
        """Work that was done within `limited`."""
        self.unfinished = False
        """Whether something was not computed because nothing was left, or because it waits for the worker process."""
        self.waits = False
        """Whether it waits for the worker process, so that the next attempt gets further only after an answer."""
        self.is_full = False
        """Whether there is no memory for its results until others are finished."""
        self.owner = ""
        """The namespace of the pod that is decided."""
        self._learned = 0.0
        """Work whose results are kept, so that it is never done again."""

    def begin(self, owner: str) -> None:
        """Begin the decision of a pod of a namespace."""
        self.owner, self.unfinished, self.waits, self.is_full = owner, False, False, False

    def refill(self, amount: float) -> None:
        """Allow this much work."""
        self.begin("")
        self.left = amount

    @property
    def goes_on(self) -> bool:
        """Return whether something was left unfinished that gets further in the next turn."""
        return self.unfinished and not self.waits

    def spend(self, amount: float) -> None:
        """Take work that was done."""
        self.left -= amount

    def learn(self, amount: float) -> None:
        """Take work that was done, and whose results are kept."""
        self.spend(amount)
        self._learned += amount

    def put_off(self) -> None:
        """Do no more for this decision: there is no memory for the results until others are finished."""
        self.unfinished = self.is_full = True

    def wait(self) -> None:
        """Do no more for this decision before the worker process has answered."""
        self.unfinished = self.waits = True

    def is_over(self) -> bool:
        """Return whether no work is left. The caller is then unfinished."""
        over = self.left <= 0 or self.waits or self.is_full
        self.unfinished |= over
        return over

    def complete(self, compute: Callable[[], T], instead: T) -> T:
        """Return the computed value, or `instead` if the computation was left unfinished.

        A decision in progress is not affected.
        """
        before = self.unfinished, self.waits, self.is_full
        self.unfinished = self.waits = self.is_full = False
        try:
            value = compute()
            return instead if self.unfinished else value
        finally:
            self.unfinished, self.waits, self.is_full = before

    @contextmanager
    def limited(self, amount: float) -> Iterator[Callable[[], bool]]:
        """Return a context that may do this much work, whatever is left outside of it.

        It yields a function that returns whether something is unfinished that the next attempt can continue. This is so
        only if this attempt learned something. Otherwise every later attempt would end at the same place.
        """
        left, unfinished, learned = self.left, self.unfinished, self._learned
        self.left, self.unfinished = amount, False

        def goes_on() -> bool:
            return self.waits or self.is_full or (self.unfinished and self._learned > learned)

        try:
            yield goes_on
        finally:
            self.within_limits += amount - self.left
            self.left, self.unfinished = left, unfinished or goes_on()
