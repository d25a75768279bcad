"""What ends a command with status 2."""


class InputError(Exception):
    """What a user gave cannot be used; the text says where, what and what is allowed."""
