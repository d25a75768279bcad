"""Upstream's allocator as a program: its module is copied, Berth's two files are added to it, and it is built.

Its packages are internal, so only a package of the same module can import them. The program is kept in the user's
cache, under a hash of the contents of Berth's files.
"""

import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from devcluster.building import cache, golang
from devcluster.errors import DevclusterError

MODULE: Final = "k8s.io/dynamic-resource-allocation"
VERSIONS: Final = ("0.36.3", "0.37.2")
OURS: Final = Path(__file__).parent / "upstream"
TABLES: Final = "structured/internal/allocatortesting"
PROGRAM: Final = "structured/internal/judge"
RUNNER: Final = "func RunTestAllocator("
GO: Final = (1, 26, 0)


def program(version: str) -> Path:
    """Return the program of a version; build it if it is not in the cache."""
    pins = cache.fingerprint(sorted(OURS.glob("*.go")))
    target = cache.root() / "binaries" / f"dra-judge-{version}-{pins}" / "judge"
    return cache.once(target, functools.partial(_build, version))


def rows(version: str, variant: str) -> list[dict[str, Any]]:
    """Return the rows of the tables that an allocator of a version supports, with what it does: `upstream/main.go`."""
    return list(_lines(subprocess.run([program(version), "rows", variant], stdout=subprocess.PIPE, check=True).stdout))


def outcomes(version: str, scenarios: Iterable[Any]) -> list[dict[str, Any]]:
    """Return what the allocator of a version does with each scenario."""
    lines = "\n".join(map(json.dumps, scenarios)).encode()
    return list(
        _lines(subprocess.run([program(version), "run"], input=lines, stdout=subprocess.PIPE, check=True).stdout)
    )


def _lines(output: bytes) -> Iterator[dict[str, Any]]:
    return map(json.loads, output.splitlines())


def _build(version: str, target: Path) -> None:
    go = golang.command(at_least=GO)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".module-") as scratch:
        # Any folder does: the version is named.
        copy = Path(scratch) / "module"
        shutil.copytree(golang.source(go=go, module=Path(scratch), path=f"{MODULE}@v{version}"), copy)
        for path in (copy, *copy.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
        _add_ours(copy)
        golang.build(go=go, module=copy, package=f"./{PROGRAM}", ldflags="-s -w", target=target)


def _add_ours(module: Path) -> None:
    (module / PROGRAM).mkdir()
    shutil.copy(OURS / "main.go", module / PROGRAM)
    shutil.copy(OURS / "rows.go", module / TABLES)
    tables = module / TABLES / "allocator_testing.go"
    text = tables.read_text()
    if text.count(RUNNER) != 1:
        raise DevclusterError(f"{TABLES} has no single {RUNNER}")
    tables.write_text(text.replace(RUNNER, "func runUpstream("))
