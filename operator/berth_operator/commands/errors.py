"""The error that ends a command with status 2."""


class InputError(Exception):
    """An input is invalid. The text names the place, the value and what is allowed."""
