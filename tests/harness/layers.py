"""The two layers of tests. Folders of the first need no cluster and start no compiled program. All others may.

If a test of the first layer starts a compiled program, it fails, whatever the code under test does with exceptions.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from devcluster.building import programs
from tests.programs import chromium

FIRST: Final = ("unit", "component")
"""The folders of the first layer, which `make test` runs; `make e2e` runs the others."""
TESTS: Final = Path(__file__).parents[1]
COMPILED: Final = {*programs.PROGRAMS, *chromium.NAMES, "go", "node"}
"""Programs of a cluster, of a page, and what builds or drives them; not `cc`, which builds the simulated cards."""
STARTS: Final = {"subprocess.Popen", "os.posix_spawn", "os.exec"}
ELF: Final = b"\x7fELF"


class Guard:
    """Fails the test of the first layer that starts a compiled program; it hooks the interpreter, so there is one."""

    def __init__(self) -> None:
        self._test = ""
        sys.addaudithook(self._hear)

    def watch(self, item: pytest.Item | None) -> None:
        """Watch a test, or none, or one that may start what it likes."""
        self._test = item.nodeid if item is not None and is_first(item.path) else ""

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._test and event in STARTS:
            self._refuse(_words(arguments))

    def _refuse(self, words: Sequence[str]) -> None:
        if program := next(filter(_is_compiled, words), None):
            pytest.fail(
                f"{self._test} starts {Path(program).name}: tests/{' and tests/'.join(FIRST)} start no compiled"
                " program, because `make test` has none; move it to the folder of tests that run on what it needs"
                " (CONTRIBUTING.md, Tests)"
            )


def is_first(path: Path) -> bool:
    """Return whether a test file belongs to the first layer; a file outside of this folder belongs to none."""
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).parts[0] in FIRST


def _words(arguments: tuple[object, ...]) -> list[str]:
    """Return the program and its arguments: one may be the program that a wrapper starts."""
    program, command = arguments[:2]
    words = [program, *command] if isinstance(command, list | tuple) else [program]
    return [os.fsdecode(word) for word in words if isinstance(word, str | bytes | os.PathLike)]


def _is_compiled(word: str) -> bool:
    """Return whether a word of a command line is one of the programs, and no script that plays it."""
    if Path(word).name not in COMPILED:
        return False
    path = shutil.which(word)
    if path is None:
        return False
    with Path(path).open("rb") as file:
        return file.read(len(ELF)) == ELF
