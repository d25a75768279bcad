"""The folder of CDI specifications, which the container runtime reads."""

import os
from pathlib import Path
from typing import Final

import orjson

from berth_agent import files
from berth_agent.files import FileIdentity
from berth_agent.vendor import CDI_VENDOR, Specification

VERSION: Final = "0.5.0"
"""The first with hostPath; containerd reads it since 1.7."""
MODE: Final = 0o644
"""The file mode. Programs other than the container runtime read specifications, too."""


class CdiFolder:
    """The agent's specifications in the folder that the container runtime reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: dict[str, Specification] | None = None
        self._files: dict[Path, FileIdentity | None] = {}
        """The files as they were written."""

    def write(self, specifications: dict[str, Specification]) -> None:
        """Write these specifications, each file atomically, and delete specifications of other classes.

        A file that another program deleted or changed is written again: without it, no container starts.

        Raises:
            OSError: the folder cannot be written.
        """
        if specifications == self._written and all(files.identity(file) == own for file, own in self._files.items()):
            return
        # Some files may be written before one that cannot be.
        self._written, self._files = None, {}
        wanted = {self._file(content): content for content in specifications.values()}
        for file in self._path.glob(f"{CDI_VENDOR}*.json"):
            if file not in wanted:
                file.unlink()
        if wanted:
            self._path.mkdir(mode=0o755, parents=True, exist_ok=True)
        for file, specification in wanted.items():
            # The runtime reads whatever ends with .json, at any moment.
            content = orjson.dumps(specification, option=orjson.OPT_INDENT_2)
            self._files[file] = files.write(file, content, mode=MODE, draft=f".{file.stem}.{os.getpid()}")
        self._written = specifications

    def _file(self, specification: Specification) -> Path:
        return self._path / f"{specification['kind'].replace('/', '-')}.json"
