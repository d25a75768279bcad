"""What goes wrong with a selector."""


class SelectorError(Exception):
    """A selector does not compile, cannot be evaluated on a device, or takes too much work; the text is for users."""


class EvaluationError(SelectorError):
    """A value cannot be computed. As in CEL, `false && error` is false, and `true || error` is true."""
