"""The cluster's programs: found if they exist, or else built once per user from pinned Go modules.

They are searched for in the KUBEBUILDER_ASSETS folder and on PATH, where they must have the pinned minor version. Then
they are searched for in the cache, which a build fills. The go.mod files in `binaries/` name the versions.

For `make demo` and `devcluster up`, programs that are not found are downloaded if they can be (`downloads`). All other
callers neither download programs nor use downloaded ones.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devcluster.building import cache, compiler, debian, downloads, golang, steps, versions
from devcluster.errors import DevclusterError

BINARIES: Final = Path(__file__).parents[1] / "binaries"
STAMP: Final = "k8s.io/component-base/version"
PROMETHEUS_STAMP: Final = "github.com/prometheus/common/version.Version"
HELM: Final = "helm.sh/helm/v3"
DRA_DRIVER: Final = "sigs.k8s.io/dra-example-driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program: the Go package it is built from, in which module of `binaries/`, and what pins its version."""

    package: str
    module: str
    pin: str
    version_args: tuple[str, ...] = ("--version",)
    """Arguments with which it prints its version; none if it cannot, and then only the one from the cache is used."""
    cgo: bool = False
    """Whether it has parts in C."""
    tags: str = ""
    """Build tags."""
    library: str = ""
    """The C library, as pkg-config names it, without which it is built without its tags."""

    @property
    def folder(self) -> Path:
        """The folder of the pinned module."""
        return BINARIES / self.module

    @property
    def version(self) -> versions.Version:
        """The pinned version."""
        major, minor, patch = versions.required((self.folder / "go.mod").read_text(), self.pin)
        # Prometheus has no module path for version 3: it releases 3.13.5 as the module's v0.313.5.
        return (3, minor - 300, patch) if self.module == "prometheus" else (major, minor, patch)

    @property
    def ldflags(self) -> str:
        """Linker flags: no symbols; and what a program reports as its version, where its module does not say it."""
        if self.module == "prometheus":
            return f"-s -w -X {PROMETHEUS_STAMP}={versions.text(self.version)}"
        if self.module == "helm":
            return " ".join(["-s -w", *(f"-X {HELM}/{key}={value}" for key, value in self._helm_stamps().items())])
        if not self.module.startswith("kubernetes"):
            return "-s -w"
        major, minor, _ = self.version
        stamps = {"gitVersion": f"v{versions.text(self.version)}", "gitMajor": major, "gitMinor": minor}
        return " ".join(["-s -w", *(f"-X {STAMP}.{key}={value}" for key, value in stamps.items())])

    def _helm_stamps(self) -> dict[str, object]:
        """Return Helm's version, and the version of Kubernetes for which it renders and checks without a cluster."""
        _, minor, _ = versions.required((self.folder / "go.mod").read_text(), "k8s.io/client-go")
        packages = ("pkg/chartutil", "pkg/lint/rules")
        served = {"k8sVersionMajor": 1, "k8sVersionMinor": minor}
        return {
            "internal/version.version": f"v{versions.text(self.version)}",
            **{f"{package}.{key}": value for package in packages for key, value in served.items()},
        }


def _kubernetes(name: str, *version_args: str) -> Program:
    return Program(
        package=f"k8s.io/kubernetes/cmd/{name}",
        module="kubernetes",
        pin="k8s.io/kubernetes",
        version_args=version_args or ("--version",),
    )


def _of_version(minor: str, name: str = "kube-apiserver") -> Program:
    return Program(package=f"k8s.io/kubernetes/cmd/{name}", module=f"kubernetes-{minor}", pin="k8s.io/kubernetes")


def _containerd(name: str, *version_args: str) -> Program:
    return Program(
        package=f"github.com/containerd/containerd/v2/cmd/{name}",
        module="containerd",
        pin="github.com/containerd/containerd/v2",
        version_args=version_args or ("--version",),
    )


def _prometheus(name: str) -> Program:
    return Program(
        package=f"github.com/prometheus/prometheus/cmd/{name}",
        module="prometheus",
        pin="github.com/prometheus/prometheus",
        # Without the clients of all clouds whose targets it could discover: half of the build.
        tags="remove_all_sd",
    )


def _controller(path: str, package: str = "", *, module: str) -> Program:
    return Program(package=f"{path}/{package}".rstrip("/"), module=module, pin=path, version_args=())


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
        tags="seccomp",
        library="libseccomp",
    ),
    "prometheus": _prometheus("prometheus"),
    "promtool": _prometheus("promtool"),
    "helm": Program(
        package=f"{HELM}/cmd/helm",
        module="helm",
        pin=HELM,
        version_args=("version", "--short"),
    ),
    "krew": Program(package="sigs.k8s.io/krew/cmd/krew", module="krew", pin="sigs.k8s.io/krew", version_args=()),
    "karpenter": Program(
        package="sigs.k8s.io/karpenter/kwok", module="karpenter", pin="sigs.k8s.io/karpenter", version_args=()
    ),
    "kueue": _controller("sigs.k8s.io/kueue", "cmd/kueue", module="kueue"),
    "jobset": _controller("sigs.k8s.io/jobset", module="kueue-neighbours"),
    "lws": _controller("sigs.k8s.io/lws", "cmd", module="kueue-neighbours"),
    "trainer": _controller("github.com/kubeflow/trainer/v2", "cmd/trainer-controller-manager", module="kueue"),
    "mpi-operator": _controller("github.com/kubeflow/mpi-operator", "cmd/mpi-operator", module="mpi-operator"),
    "kuberay": _controller("github.com/ray-project/kuberay/ray-operator", module="kuberay"),
    "dra-example-kubeletplugin": Program(
        package=f"{DRA_DRIVER}/cmd/dra-example-kubeletplugin", module="dra-driver", pin=DRA_DRIVER, version_args=()
    ),
    "actionlint": _controller("github.com/rhysd/actionlint", "cmd/actionlint", module="actionlint"),
    "cosign": _controller("github.com/sigstore/cosign/v3", "cmd/cosign", module="cosign"),
    "kube-apiserver-1.30": _of_version("1.30"),
    "kube-apiserver-1.34": _of_version("1.34"),
    "kube-controller-manager-1.34": _of_version("1.34", "kube-controller-manager"),
    "kube-scheduler-1.34": _of_version("1.34", "kube-scheduler"),
    "kubelet-1.34": _of_version("1.34", "kubelet"),
    "kube-apiserver-1.37": _of_version("1.37"),
    "kube-controller-manager-1.37": _of_version("1.37", "kube-controller-manager"),
    "kube-scheduler-1.37": _of_version("1.37", "kube-scheduler"),
    "kubelet-1.37": _of_version("1.37", "kubelet"),
}
CLUSTER: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd", "kwok")
"""What every cluster needs."""
REAL_NODE: Final = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc")
"""What a real node needs in addition; built only if one is requested."""
MONITORING: Final = ("prometheus", "promtool")
"""What tests of metrics, dashboards and alert rules need; without Prometheus' web pages."""
PACKAGING: Final = ("helm",)
"""What tests of the chart need."""
PLUGIN_MANAGER: Final = ("krew",)
"""What the test of the archive for krew needs."""
AUTOSCALER: Final = ("karpenter",)
"""What the tests with an autoscaler need: Karpenter, whose provider creates nodes that kwok plays."""
QUOTAS: Final = ("kueue", "jobset", "lws", "trainer")
"""What the tests of quotas need: Kueue, and the controllers whose workloads it holds."""
WORKLOADS: Final = (*QUOTAS, "mpi-operator", "kuberay")
"""What the tests of workloads need: the controllers that create the workloads' pods."""
CLAIMS: Final = ("dra-example-kubeletplugin",)
"""What the tests of ResourceClaims on a real node need: a driver."""
WORKFLOWS: Final = ("actionlint",)
"""What the test of the workflows needs."""


def ensure(names: Iterable[str] = CLUSTER, *, download: bool = False) -> dict[str, Path]:
    """Return where each program is; build the missing ones and show the progress.

    With `download`, those are downloaded first that have a pinned image.
    """
    paths = {name: find(name, downloaded=download) for name in names}
    if download:
        images = {name: _image(name) for name, path in paths.items() if path is None}
        if pinned := {name: image for name, image in images.items() if image is not None}:
            downloads.fetch(pinned, has_pinned_version)
            paths |= {name: find(name, downloaded=True) for name in pinned}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        go_version = max(versions.go_directive((PROGRAMS[name].folder / "go.mod").read_text()) for name in missing)
        title = f"building {', '.join(missing)}: once for this user, minutes where Go's cache is empty"
        with steps.shown(title) as step:
            with step("go toolchain"):
                go = golang.command(at_least=go_version)
            for name in missing:
                with step(f"{name} {versions.text(PROGRAMS[name].version)}"):
                    cache.once(cached(name), functools.partial(_build, name, go))
    return {name: path or cached(name) for name, path in paths.items()}


def find(name: str, *, downloaded: bool = False) -> Path | None:
    """Return where the program is, or None where it must be built; look at downloads, too, if `downloaded` is set."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in (assets, os.environ.get("PATH")) if PROGRAMS[name].version_args else ():
        path = shutil.which(name, path=folder) if folder else None
        if path and has_pinned_version(name, Path(path)):
            return Path(path)
    image = _image(name) if downloaded else None
    places = (cached(name), *([downloads.cached(name, image)] if image else ()))
    return next((place for place in places if place.exists()), None)


def cached(name: str) -> Path:
    """Return the program's place in the cache, whether it is there or not."""
    program = PROGRAMS[name]
    pins = cache.fingerprint(program.folder / file for file in ("go.mod", "go.sum", "tools.go"))
    parts = (program.module, versions.text(program.version), pins, program.library)
    return cache.root() / "binaries" / "-".join(filter(None, parts)) / name


def source(name: str) -> Path:
    """Return the folder with the source of a program's module, which Go downloads if it is not in its cache."""
    program = PROGRAMS[name]
    go = golang.command(at_least=versions.go_directive((program.folder / "go.mod").read_text()))
    return golang.source(go=go, module=program.folder, path=program.pin)


def has_pinned_version(name: str, path: Path) -> bool:
    """Return whether a file runs and prints the pinned minor version of the program."""
    program = PROGRAMS[name]
    command = [str(path), *program.version_args]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return versions.same_minor(versions.parse(completed.stdout), program.version)


def _image(name: str) -> downloads.Image | None:
    """Return the image from which the program can be downloaded: one of the pinned minor version."""
    image = downloads.image(name)
    is_pinned = image is not None and versions.same_minor(versions.parse(image.version), PROGRAMS[name].version)
    return image if is_pinned else None


def _build(name: str, go: Path, target: Path) -> None:
    program = PROGRAMS[name]
    golang.build(
        go=go,
        module=program.folder,
        package=program.package,
        ldflags=program.ldflags,
        target=target,
        cgo=program.cgo,
        tags=program.tags if _has_library(program) else "",
    )
    if program.version_args and not has_pinned_version(name, target):
        raise DevclusterError(f"{name} was built, but does not run or has another version than go.mod pins")


def _has_library(program: Program) -> bool:
    """Return whether the program's C library can be linked; the compiler of a wheel does not know the system's."""
    return not program.library or (compiler.of_system() is not None and debian.ensure_library(program.library))
