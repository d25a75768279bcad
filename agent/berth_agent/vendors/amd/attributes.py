"""Reads of the driver's files in sysfs. They are bounded, and they never fail.

While a card is reset or suspended, the driver refuses reads (EPERM, EIO, EAGAIN). The last text then still holds.
"""

import itertools
import os
import re
from pathlib import Path
from typing import Final

PAGE: Final = 4096
"""Bytes of an attribute; the kernel gives no more, except for tables."""
TABLE: Final = 1 << 20
"""Bytes of a table that are read, such as 37,000 bad pages."""
MAX_ENTRIES: Final = 1024
"""Entries of a folder that are looked at."""
_GONE: Final = (FileNotFoundError, NotADirectoryError, ProcessLookupError)
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class Attributes:
    """Files of the driver, and what they contained last; for use in one thread at a time."""

    def __init__(self) -> None:
        self._last: dict[Path, str] = {}
        self._read: set[Path] = set()
        self.refused: set[Path] = set()
        """Files, folders and links that could not be read since the last call of `forget_unread`, and never before."""

    def text(self, path: Path, *, limit: int = PAGE, form: re.Pattern[str] | None = None) -> str:
        """Return the text of a file; the last text while it cannot be read; empty if it does not exist.

        Args:
            path: of the file.
            limit: bytes that are read.
            form: how a text begins that counts; the driver writes sentences in place of numbers while a card recovers.
        """
        self._read.add(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                text = os.read(descriptor, limit).decode(errors="replace").strip()
            finally:
                os.close(descriptor)
            if form is None or form.match(text):
                self._last[path] = text
        except _GONE:
            self._last.pop(path, None)
        except OSError:
            if path not in self._last:
                self.refused.add(path)
        return self._last.get(path, "")

    def number(self, path: Path) -> int | None:
        """Return the decimal number that a file contains; None if it contains something else or does not exist."""
        text = self.text(path)
        return int(text) if _NUMBER.fullmatch(text) else None

    def names(self, folder: Path) -> list[str]:
        """Return the names of a folder's entries, sorted; the last ones while it cannot be read."""
        self._read.add(folder)
        try:
            with os.scandir(folder) as entries:
                self._last[folder] = "\n".join(sorted(entry.name for entry in itertools.islice(entries, MAX_ENTRIES)))
        except _GONE:
            self._last.pop(folder, None)
        except OSError:
            if folder not in self._last:
                self.refused.add(folder)
        return self._last.get(folder, "").splitlines()

    def target(self, path: Path) -> str:
        """Return the name of the file that a link leads to; the last one while it cannot be read."""
        self._read.add(path)
        try:
            self._last[path] = path.readlink().name
        except _GONE:
            self._last.pop(path, None)
        except OSError:
            if path not in self._last:
                self.refused.add(path)
        return self._last.get(path, "")

    def forget_unread(self) -> None:
        """Forget the files that were not read since the last call: their cards are gone."""
        self._last = {path: text for path, text in self._last.items() if path in self._read}
        self._read, self.refused = set(), set()
