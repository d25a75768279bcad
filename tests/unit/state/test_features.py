"""Kubelet features that pods need."""

from typing import Any

import pytest

from berth_operator.state.objects import features, pods
from tests.builders import container, pod

Raw = dict[str, Any]

RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, (), id="none"),
        pytest.param({"containers": [container(restartPolicyRules=None)]}, (), id="null"),
        pytest.param({"containers": [container(restartPolicyRules=[{"action": "Restart"}])]}, (), id="another action"),
        pytest.param({"containers": [container(restartPolicyRules=RULES)]}, (features.RESTART_ALL,), id="restart all"),
        pytest.param(
            {"initContainers": [container(restartPolicyRules=RULES)]},
            (features.RESTART_ALL,),
            id="by an init container",
        ),
        pytest.param({"hostNetwork": True}, (), id="host network"),
        pytest.param({"hostUsers": False}, (), id="users of its own"),
        pytest.param({"hostNetwork": True, "hostUsers": True}, (), id="host network, the host's users"),
        pytest.param(
            {"hostNetwork": True, "hostUsers": False},
            (features.USERS_ON_HOST_NETWORK,),
            id="host network, users of its own",
        ),
    ],
)
def test_a_pod_needs(fields: Raw, expected: tuple[str, ...]) -> None:
    assert pods.pending(pod(**fields)).request.features == expected
