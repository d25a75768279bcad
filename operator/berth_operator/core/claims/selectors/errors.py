"""Errors of selectors."""


class SelectorError(Exception):
    """A selector does not compile, cannot be evaluated on a device, or takes too much work; the text is for users."""


class EvaluationError(SelectorError):
    """A value cannot be computed. As in CEL, `false && error` is false, and `true || error` is true."""


class StepsError(SelectorError):
    """An expression takes more steps than are allowed."""

    def __init__(self, limit: int = 0) -> None:
        """Create the error; `limit` is known where the evaluation began."""
        super().__init__(f"the expression takes more than {limit} steps")
