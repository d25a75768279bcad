"""What goes wrong, in words for the person at the terminal."""


class DevclusterError(Exception):
    """Something the development cluster needs is missing or failed; the text says what and what to do."""
