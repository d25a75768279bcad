"""Command lines of the components."""

import base64
from dataclasses import replace

import pytest
import yaml

from devcluster.control_plane import components

CONTROL_PLANE = components.ControlPlane(
    programs={name: f"/programs/{name}" for name in components.CONTROL_PLANE},
    etcd_port=1001,
    api_port=1002,
    extra_args={"kube-apiserver": ["--audit-log-path=audit.log"]},
)


def test_api_server_finds_etcd_and_its_own_port() -> None:
    command = CONTROL_PLANE.command("kube-apiserver")

    assert command[0] == "/programs/kube-apiserver"
    assert "--etcd-servers=http://127.0.0.1:1001" in command
    assert "--secure-port=1002" in command


def test_extra_arguments_come_last() -> None:
    assert CONTROL_PLANE.command("kube-apiserver")[-1] == "--audit-log-path=audit.log"
    assert "--audit-log-path=audit.log" not in CONTROL_PLANE.command("kwok")


@pytest.mark.parametrize(
    ("component", "flag", "kept"),
    [
        ("kube-apiserver", "--profiling=true", set()),
        ("kube-apiserver", components.AGGREGATOR_ROUTING, {"-endpointslice-controller"}),
        ("kube-controller-manager", components.CHECKS_POLICY_TYPES, {"-validatingadmissionpolicy-status-controller"}),
    ],
)
def test_a_controller_runs_where_an_argument_needs_it(component: str, flag: str, kept: set[str]) -> None:
    usual = _controllers(CONTROL_PLANE)

    assert usual - _controllers(replace(CONTROL_PLANE, extra_args={component: [flag]})) == kept


def _controllers(control_plane: components.ControlPlane) -> set[str]:
    first = next(word for word in control_plane.command("kube-controller-manager") if "--controllers=" in word)
    return set(first.split(","))


@pytest.mark.parametrize("name", components.CONTROL_PLANE)
def test_no_component_listens_beyond_loopback(name: str) -> None:
    addresses = [argument for argument in CONTROL_PLANE.command(name) if "://" in argument or "-address=" in argument]

    assert all("127.0.0.1" in address or "kubernetes.default" in address for address in addresses)


def test_kubeconfig_carries_the_authority_itself() -> None:
    config = yaml.safe_load(components.kubeconfig(server="https://127.0.0.1:1", token="secret", ca="PEM"))  # noqa: S106

    cluster = config["clusters"][0]["cluster"]
    assert cluster["server"] == "https://127.0.0.1:1"
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"PEM"
    assert config["users"][0]["user"] == {"token": "secret"}
