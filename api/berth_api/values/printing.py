"""Texts of files and of objects, as a terminal may show them."""


def printable(text: str) -> str:
    """Return a text on one line, without control characters: others wrote it, and a terminal would obey them."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def printable_lines(text: str) -> str:
    """Return the same for a message of several lines, such as a parser's."""
    return "\n".join(map(printable, text.splitlines()))
