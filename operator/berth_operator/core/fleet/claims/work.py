"""How much may still be computed about claims before the loop of the operator must do something else."""

import math


class Work:
    """Work in devices that are looked at, about a microsecond each; unlimited by default.

    Copies of the Fleet share it: what-ifs take the loop's time as well.
    """

    def __init__(self, left: float = math.inf) -> None:
        self.left = left
        self.unfinished = False
        """Whether something was not computed because nothing was left."""

    def refill(self, amount: float) -> bool:
        """Allow this much work, and return whether something was left unfinished before."""
        unfinished, self.unfinished, self.left = self.unfinished, False, amount
        return unfinished

    def spend(self, amount: float) -> None:
        """Take work that was done."""
        self.left -= amount

    def is_over(self) -> bool:
        """Return whether nothing is left; what asks is then unfinished."""
        over = self.left <= 0
        self.unfinished |= over
        return over
