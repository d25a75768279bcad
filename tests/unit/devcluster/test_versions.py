"""Versions are read from what programs print and from go.mod files."""

import pytest

from devcluster.building import programs, versions

GO_MOD = """
module example.com/thing

go 1.26.0

require k8s.io/kubernetes v1.36.3

require (
\tgo.etcd.io/etcd/server/v3 v3.6.16 // indirect
)
"""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param("Kubernetes v1.36.3\n", (1, 36, 3), id="kube-apiserver"),
        pytest.param("Client Version: v1.36.3\nKustomize Version: v5.8.1\n", (1, 36, 3), id="kubectl"),
        pytest.param("etcd Version: 3.6.16\nGit SHA: Not provided\n", (3, 6, 16), id="etcd"),
        pytest.param("kwok version v0.8.0 go1.26.8 (linux/amd64)\n", (0, 8, 0), id="kwok"),
        pytest.param("prometheus, version 3.13.5 (branch: , revision: unknown)\n", (3, 13, 5), id="prometheus"),
        pytest.param("v3.22.0\n", (3, 22, 0), id="helm"),
        pytest.param("go version go1.27 linux/amd64\n", (1, 27, 0), id="go-without-patch"),
        pytest.param("error: unknown flag\n", None, id="none"),
    ],
)
def test_version_in_output(output: str, expected: versions.Version | None) -> None:
    assert versions.parse(output) == expected


@pytest.mark.parametrize(
    ("found", "fits"),
    [
        pytest.param((1, 36, 0), True, id="other-patch"),
        pytest.param((1, 35, 3), False, id="other-minor"),
        pytest.param((2, 36, 3), False, id="other-major"),
        pytest.param(None, False, id="none"),
    ],
)
def test_same_minor(found: versions.Version | None, *, fits: bool) -> None:
    assert versions.same_minor(found, (1, 36, 3)) is fits


def test_go_mod_names_the_versions() -> None:
    assert versions.required(GO_MOD, "k8s.io/kubernetes") == (1, 36, 3)
    assert versions.required(GO_MOD, "go.etcd.io/etcd/server/v3") == (3, 6, 16)
    assert versions.go_directive(GO_MOD) == (1, 26, 0)


def test_go_mod_without_the_dependency_is_refused() -> None:
    with pytest.raises(ValueError, match=r"does not require k8s.io/other"):
        versions.required(GO_MOD, "k8s.io/other")


def test_kubernetes_programs_are_stamped_with_the_pinned_version() -> None:
    flags = programs.PROGRAMS["kube-apiserver"].ldflags
    stamp = "k8s.io/component-base/version"
    major, minor, patch = programs.PROGRAMS["kube-apiserver"].version

    assert f"-X {stamp}.gitVersion=v{major}.{minor}.{patch}" in flags
    assert flags.endswith(f"-X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}")
    assert programs.PROGRAMS["etcd"].ldflags == "-s -w"


def test_prometheus_has_the_version_of_its_release_not_of_its_module() -> None:
    program = programs.PROGRAMS["promtool"]
    required = versions.required((program.folder / "go.mod").read_text(), program.pin)

    assert required == (0, 300 + program.version[1], program.version[2])
    assert program.version[0] == 3
    assert program.ldflags.endswith(f"version.Version={versions.text(program.version)}")
