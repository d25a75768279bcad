"""The client's own rules; what it does with a server is shown by the integration tests."""

import pytest

from devcluster.control_plane.api import Api, Resource


@pytest.mark.parametrize("server", ["https://192.0.2.1:6443", "https://[2001:db8::1]:6443", "https://127.0.0.1"])
def test_only_a_port_on_loopback_is_accepted(server: str) -> None:
    with pytest.raises(ValueError, match="not on loopback"):
        Api(server=server, token="", ca="")


def test_paths_of_namespaced_and_cluster_wide_objects() -> None:
    pods = Resource(prefix="/api/v1", plural="pods", kind="Pod", namespaced=True)
    devices = Resource(prefix="/apis/berth.dev/v1alpha1", plural="devices", kind="Device", namespaced=False)

    assert pods.path(namespace="here", name="one") == "/api/v1/namespaces/here/pods/one"
    assert devices.path(namespace="here", name="one") == "/apis/berth.dev/v1alpha1/devices/one"
    assert (pods.api_version, devices.api_version) == ("v1", "berth.dev/v1alpha1")
