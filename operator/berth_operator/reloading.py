"""Reads the configuration file again whenever its content changes.

It is looked at and not watched: the kubelet replaces the files of a ConfigMap by changing a link two folders up, and
a few seconds are nothing against the minute that it takes to do so. What cannot be used changes nothing.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from berth_operator import configuration
from berth_operator.configuration import Configuration, ConfigurationError
from berth_operator.metrics import counters

PERIOD: Final = 2.0
"""Seconds between two looks."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ConfigurationFile:
    """A file whose first content is in use already."""

    def __init__(
        self,
        path: Path,
        *,
        first: Configuration,
        use: Callable[[Configuration], None],
        refused: Callable[[str], None],
    ) -> None:
        """`use` is given what is new, and `refused` what is wrong, once for each mistake."""
        self._path, self._in_use, self._use, self._refused = path, first, use, refused
        self._seen = b""
        self._problem = ""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            self.look()

    def look(self) -> None:
        """Use what is new; tell once of what cannot be used."""
        try:
            content = configuration.read(self._path)
            if content != self._seen or self._problem:
                self._seen = content
                self._take(configuration.parse(content, self._path))
        except ConfigurationError as error:
            self._refuse(str(error))

    def _take(self, found: Configuration) -> None:
        self._problem = ""
        counters.CONFIGURATION_VALID.set(1)
        if found != self._in_use:
            self._in_use = found
            self._use(found)

    def _refuse(self, problem: str) -> None:
        counters.CONFIGURATION_VALID.set(0)
        if problem != self._problem:
            self._problem = problem
            log.error("configuration refused, the last valid one stays in use", error=problem)
            self._refused(problem)
