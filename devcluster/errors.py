"""Errors of the development cluster, with messages for the user."""


class DevclusterError(Exception):
    """Something that the development cluster needs is missing or failed; the message says what, and what to do."""
