"""Colours: only on terminals, and not if the variable NO_COLOR is set."""

import os
from typing import Final, TextIO

RED: Final = "31"
YELLOW: Final = "33"
GREEN: Final = "32"


def are_wanted(stream: TextIO) -> bool:
    """Return whether colours may be written to a stream."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str) -> str:
    """Return a text in a colour."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text
