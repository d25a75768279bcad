"""Reload the configuration file when its content changes.

The file is polled and not watched. kubelet updates a ConfigMap's files by replacing a symbolic link two folders up.
This takes up to a minute, so a few more seconds do not matter. An invalid file changes nothing.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from berth_operator.metrics import counters
from berth_operator.settings import configuration
from berth_operator.settings.configuration import Configuration, ConfigurationError

PERIOD: Final = 2.0
"""Seconds between two checks."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ConfigurationFile:
    """A configuration file whose first content is already in use."""

    def __init__(
        self,
        path: Path,
        *,
        first: Configuration,
        use: Callable[[Configuration], None],
        refused: Callable[[str], None],
    ) -> None:
        """Create a reloader; it calls `use` with each new configuration, and `refused` once with each problem."""
        self._path, self._in_use, self._use, self._refused = path, first, use, refused
        self._seen = b""
        self._problem = ""

    async def run(self) -> None:
        """Check the file until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            self.check()

    def check(self) -> None:
        """Use the file if it has changed; report a problem once."""
        try:
            content = configuration.read(self._path)
            if content == self._seen and not self._problem:
                return
            self._seen = content
            new = configuration.parse(content, self._path)
            self._problem = ""
            counters.CONFIGURATION_VALID.set(1)
            if new != self._in_use:
                self._in_use = new
                self._use(new)
        except ConfigurationError as error:
            self._refuse(str(error))

    def _refuse(self, problem: str) -> None:
        counters.CONFIGURATION_VALID.set(0)
        if problem != self._problem:
            self._problem = problem
            log.error("configuration refused, the last valid one stays in use", error=problem)
            self._refused(problem)
