"""Which pods are routed. tests/integration/policies compares this with the API server's policy."""

from typing import Any

import pytest

from berth_api.admission import routing
from tests.objects.builders import FPGA, GPU, NVIDIA, RDMA, Raw, container

NUMBER = "genius/gpu-number"
CLAIMS = [{"name": "nic", "resourceClaimTemplateName": "nic"}]


def made(*requests: Raw, labels: Raw | None = None, **spec: Any) -> Raw:
    containers = [container(f"c{number}", each) for number, each in enumerate(requests)]
    spec = {"schedulerName": "default-scheduler", "containers": containers, **spec}
    return {"metadata": {"labels": labels}, "spec": spec}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(made({GPU: "50"}), True, id="a share"),
        pytest.param(made({"koordinator.sh/gpu-memory-ratio": "5"}), True, id="koordinator"),
        pytest.param(made({"kubernetes.io/gpu.shared": "2"}), True, id="spread"),
        pytest.param(made({RDMA: "1"}), True, id="a NIC"),
        pytest.param(made({FPGA: "1"}), True, id="an FPGA"),
        pytest.param(made({}, {GPU: "50"}), True, id="the second container"),
        pytest.param(made({}, initContainers=[container("i", {GPU: "50"})]), True, id="an init container"),
        pytest.param(made({}, labels={NUMBER: "1"}), True, id="by label"),
        pytest.param(made({GPU: "50", NVIDIA: "1"}), True, id="both, which Berth refuses"),
        pytest.param(made({NVIDIA: "1"}, labels={NUMBER: "1"}), False, id="kubelet's, with a label"),
        pytest.param(made({NVIDIA: "1"}), False, id="kubelet's"),
        pytest.param(made({GPU: "0"}), False, id="none"),
        pytest.param(made({"cpu": "1"}, labels={"genius/priority": "1"}), False, id="no device"),
        pytest.param(made({"kubernetes.io/gpus": "1"}), False, id="another resource"),
        pytest.param(made({"example.com/gpu": "1"}), False, id="another prefix"),
        pytest.param(made({GPU: "50"}, schedulerName="volcano"), False, id="another scheduler is named"),
        pytest.param(made({GPU: "50"}, schedulerName="berth-scheduler"), False, id="Berth is named"),
        pytest.param(made({GPU: "50"}, nodeName="node"), False, id="names its node"),
    ],
)
def test_which_pods_are_routed(pod: Raw, *, expected: bool) -> None:
    assert routing.is_routed(pod) is expected
    after = routing.routed(pod, "berth")["spec"]["schedulerName"]
    assert after == ("berth" if expected else pod["spec"]["schedulerName"])


@pytest.mark.parametrize(
    ("pod", "route", "expected"),
    [
        pytest.param(made({NVIDIA: "1"}), "devices", True, id="a card"),
        pytest.param(made({"nvidia.com/mig-1g.10gb": "1"}), "devices", True, id="an instance"),
        pytest.param(made({"nvidia.com/gpumem": "1"}), "devices", True, id="a word of another system"),
        pytest.param(made({GPU: "50"}), "devices", True, id="a share"),
        pytest.param(made({"example.com/npu": "1"}), "devices", True, id="a plug-in's"),
        pytest.param(made({"amd.com/gpu": "1"}), "devices", False, id="of a vendor that Berth has on no node"),
        pytest.param(made({NVIDIA: "0"}), "devices", False, id="none"),
        pytest.param(made({NVIDIA: "1"}, nodeName="node"), "devices", False, id="names its node"),
        pytest.param(made({NVIDIA: "1"}, schedulerName="volcano"), "devices", False, id="another scheduler is named"),
        pytest.param(made({"nvidia.com/gpumem": "1"}), "words", True, id="a word where words are read"),
        pytest.param(made({NVIDIA: "2"}, resourceClaims=CLAIMS), "devices", False, id="cards and claims"),
        pytest.param(made({"nvidia.com/gpumem": "1"}, resourceClaims=CLAIMS), "words", False, id="a word and claims"),
        pytest.param(made({NVIDIA: "2"}, resourceClaims=[]), "devices", True, id="an empty list of claims"),
        pytest.param(made({GPU: "50"}, resourceClaims=CLAIMS), "devices", True, id="what only Berth allocates"),
        pytest.param(made({NVIDIA: "1"}), "words", False, id="a card where words are read"),
        pytest.param(made({NVIDIA: "1"}), "own", False, id="a card elsewhere"),
        pytest.param(made({GPU: "50"}), "disabled", False, id="a share where routing is off"),
    ],
)
def test_the_namespaces_label_decides(pod: Raw, route: str, *, expected: bool) -> None:
    after = routing.routed_as(pod, "berth", route, {"example.com/npu"})["spec"]["schedulerName"]
    assert after == ("berth" if expected else pod["spec"]["schedulerName"])


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(
            made({NVIDIA: "2"}, resourceClaims=CLAIMS),
            ". The label berth.dev/routing routes no pod with spec.resourceClaims; if",
            id="cards",
        ),
        pytest.param(
            made({"nvidia.com/gpumem": "1"}, resourceClaims=CLAIMS),
            "berth.dev/routing routes no pod with spec",
            id="a word",
        ),
        pytest.param(made({"nvidia.com/gpumem": "1"}), "or give its namespace the label", id="a word alone"),
    ],
)
def test_a_pod_that_the_label_does_not_route_is_told_why(pod: Raw, expected: str) -> None:
    message = routing.why_not_ours(pod, ("berth",))
    assert expected in message
    assert "write spec.schedulerName: berth" in message


def test_a_pod_without_devices_is_told_nothing_about_the_label() -> None:
    message = routing.why_not_ours(made({"cpu": "1"}, resourceClaims=CLAIMS), ("berth",))
    assert message == 'Berth does not schedule pods of schedulerName "default-scheduler"'
