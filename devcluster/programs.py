"""The cluster's programs: found where they exist, else built once per user from pinned Go modules.

They are searched for in the KUBEBUILDER_ASSETS folder and on PATH, where they must have the pinned minor version, and
then in the cache, which a build fills. Only the go.mod files in `binaries/` name versions.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devcluster import cache, golang, steps, versions
from devcluster.errors import DevclusterError

BINARIES: Final = Path(__file__).parent / "binaries"
STAMP: Final = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program: the Go package it is built from, in which module of `binaries/`, and what pins its version."""

    package: str
    module: str
    pin: str
    version_args: tuple[str, ...] = ("--version",)
    cgo: bool = False
    """Whether it has parts in C."""

    @property
    def folder(self) -> Path:
        """The folder of the pinned module."""
        return BINARIES / self.module

    @property
    def version(self) -> versions.Version:
        """The pinned version."""
        return versions.required((self.folder / "go.mod").read_text(), self.pin)

    @property
    def ldflags(self) -> str:
        """Linker flags: no symbols; and Kubernetes learns its version, which clients ask for."""
        if self.module != "kubernetes":
            return "-s -w"
        major, minor, _ = self.version
        stamps = {"gitVersion": f"v{versions.text(self.version)}", "gitMajor": major, "gitMinor": minor}
        return " ".join(["-s -w", *(f"-X {STAMP}.{key}={value}" for key, value in stamps.items())])


def _kubernetes(name: str, *version_args: str) -> Program:
    return Program(
        package=f"k8s.io/kubernetes/cmd/{name}",
        module="kubernetes",
        pin="k8s.io/kubernetes",
        version_args=version_args or ("--version",),
    )


def _containerd(name: str, *version_args: str) -> Program:
    return Program(
        package=f"github.com/containerd/containerd/v2/cmd/{name}",
        module="containerd",
        pin="github.com/containerd/containerd/v2",
        version_args=version_args or ("--version",),
    )


PROGRAMS: Final = {
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "kubectl": _kubernetes("kubectl", "version", "--client"),
    "etcd": Program(package="go.etcd.io/etcd/server/v3", module="etcd", pin="go.etcd.io/etcd/server/v3"),
    "kwok": Program(package="sigs.k8s.io/kwok/cmd/kwok", module="kwok", pin="sigs.k8s.io/kwok"),
    "kubelet": _kubernetes("kubelet"),
    "containerd": _containerd("containerd"),
    "containerd-shim-runc-v2": _containerd("containerd-shim-runc-v2", "-v"),
    "ctr": _containerd("ctr"),
    "runc": Program(
        package="github.com/opencontainers/runc",
        module="runc",
        pin="github.com/opencontainers/runc",
        cgo=True,
    ),
}
CLUSTER: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd", "kwok")
"""What every cluster needs."""
REAL_NODE: Final = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc")
"""What a real node needs in addition; built only if one is requested."""


def ensure(names: Iterable[str] = CLUSTER) -> dict[str, Path]:
    """Return where each program is; build the missing ones and show the progress."""
    paths = {name: find(name) for name in names}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        _build_all(missing)
    return {name: path or cached(name) for name, path in paths.items()}


def find(name: str) -> Path | None:
    """Return where the program is, or None where it must be built."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in (assets, os.environ.get("PATH")):
        path = shutil.which(name, path=folder) if folder else None
        if path and _has_pinned_version(PROGRAMS[name], Path(path)):
            return Path(path)
    return cached(name) if cached(name).exists() else None


def cached(name: str) -> Path:
    """Return the program's place in the cache, whether it is there or not."""
    program = PROGRAMS[name]
    pins = cache.fingerprint(program.folder / file for file in ("go.mod", "go.sum", "tools.go"))
    return cache.root() / "binaries" / f"{program.module}-{versions.text(program.version)}-{pins}" / name


def _has_pinned_version(program: Program, path: Path) -> bool:
    command = [str(path), *program.version_args]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return versions.same_minor(versions.parse(completed.stdout), program.version)


def _build_all(names: list[str]) -> None:
    go_version = max(versions.go_directive((PROGRAMS[name].folder / "go.mod").read_text()) for name in names)
    title = f"building {', '.join(names)}: once for this user, minutes where Go's cache is empty"
    with steps.shown(title) as step:
        with step("go toolchain"):
            go = golang.command(at_least=go_version)
        for name in names:
            with step(f"{name} {versions.text(PROGRAMS[name].version)}"):
                cache.once(cached(name), functools.partial(_build, name, go))


def _build(name: str, go: Path, target: Path) -> None:
    program = PROGRAMS[name]
    golang.build(
        go=go,
        module=program.folder,
        package=program.package,
        ldflags=program.ldflags,
        target=target,
        cgo=program.cgo,
    )
    if not _has_pinned_version(program, target):
        raise DevclusterError(f"{name} was built, but does not run or has another version than go.mod pins")
