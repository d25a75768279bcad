"""The client's own rules. The integration tests show its use of a server."""

import pytest

from devcluster.control_plane.api import Api


@pytest.mark.parametrize("server", ["https://192.0.2.1:6443", "https://[2001:db8::1]:6443", "https://127.0.0.1"])
def test_only_a_port_on_loopback_is_accepted(server: str) -> None:
    with pytest.raises(ValueError, match="not on loopback"):
        Api(server=server, token="", ca="")
