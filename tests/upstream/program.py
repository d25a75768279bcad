"""Tests of upstream as programs: Kubernetes' module is copied and changed, and its tests are built.

The copy replaces a module that is named with its version, so that Go's cache has what was built of the module for the
API server. The programs are kept in the user's cache.
"""

import functools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from devcluster.building import cache, golang, programs, versions

PATCHES: Final = Path(__file__).parent
MODULE: Final = "k8s.io/kubernetes"
FOLDER: Final = "test/integration"
E2E: Final = "test/e2e"
OTHERS: Final = re.compile(rf'^\t_ "{MODULE}/{E2E}/(?!(scheduling|feature|framework)\b).*\n', re.MULTILINE)
"""The imports by which the program of all e2e tests has those of others: ten minutes of its build."""
UNUSED: Final = "k8s.io/sample-apiserver"
"""A module that Kubernetes requires and these tests do not import; no go.sum here has it."""


def program(api_server: str, package: str) -> Path:
    """Return the tests of a package, of the version that an API server of devcluster has.

    They are built if they are not in the cache.
    """
    version, change = _version(api_server), patch(api_server)
    name = package.removeprefix(f"{FOLDER}/").replace("/", "-")
    folder = cache.root() / "binaries" / f"{name}-integration-{version}-{cache.fingerprint([change])}"
    build = functools.partial(_build, api_server, package, functools.partial(_apply, change))
    return cache.once(folder / f"{name}.test", build)


def e2e(api_server: str) -> Path:
    """Return the e2e tests of scheduling, of the version that an API server of devcluster has, in the same way."""
    pinned = programs.PROGRAMS[api_server].folder
    folder = cache.root() / "binaries" / f"e2e-{_version(api_server)}-{cache.fingerprint([pinned / 'go.mod'])}"
    return cache.once(folder / "e2e.test", functools.partial(_build, api_server, E2E, _keep_scheduling))


def patch(api_server: str) -> Path:
    """Return the patch of the tests of an API server's version."""
    return PATCHES / f"kubernetes-{_version(api_server)}.patch"


def _version(api_server: str) -> str:
    return versions.text(programs.PROGRAMS[api_server].version)


def _apply(change: Path, copy: Path) -> None:
    subprocess.run(["git", "apply", str(change)], cwd=copy, check=True)


def _keep_scheduling(copy: Path) -> None:
    """Leave out the tests of others."""
    main = copy / E2E / "e2e_test.go"
    main.write_text(OTHERS.sub("", main.read_text()))


def _build(api_server: str, package: str, change: Callable[[Path], None], target: Path) -> None:
    pinned = programs.PROGRAMS[api_server]
    go = golang.command(at_least=versions.go_directive((pinned.folder / "go.mod").read_text()))
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".module-") as scratch:
        module, copy = Path(scratch), Path(scratch) / "kubernetes"
        shutil.copytree(programs.source(api_server), copy)
        for path in (copy, *copy.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
        change(copy)
        _write_module(go, module, copy, pinned)
        tests = f"{MODULE}/{package}"
        golang.build(go=go, module=module, package=tests, ldflags="-s -w", target=target, tests=True)


def _write_module(go: Path, module: Path, copy: Path, pinned: programs.Program) -> None:
    """Write a module as the API server is built in, with the copy, and with what only Kubernetes' own tests need."""
    shutil.copy(pinned.folder / "go.mod", module)
    sums = (folder / "go.sum" for folder in (copy, pinned.folder))
    (module / "go.sum").write_text("".join(file.read_text() for file in sums))
    subprocess.run([go, "mod", "edit", *_edits(go, copy, pinned.folder)], cwd=module, check=True)


def _edits(go: Path, copy: Path, pinned: Path) -> Iterator[str]:
    yield f"-replace={MODULE}=./{copy.name}"
    theirs, ours = _required(go, copy), _required(go, pinned)
    for path in theirs.keys() - ours.keys() - {UNUSED}:
        yield f"-require={path}@{theirs[path]}"


def _required(go: Path, module: Path) -> dict[str, str]:
    shown = subprocess.run([go, "mod", "edit", "-json"], cwd=module, stdout=subprocess.PIPE, check=True).stdout
    return {each["Path"]: each["Version"] for each in json.loads(shown)["Require"]}
