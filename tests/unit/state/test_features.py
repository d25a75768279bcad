"""Kubelet features that pods need."""

from typing import Any

import pytest

from berth_operator.state.objects import features, pods
from tests.objects.builders import container, pod

Raw = dict[str, Any]

RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]


POD_NEEDS = {
    "none": ({}, ()),
    "null": ({"containers": [container(restartPolicyRules=None)]}, ()),
    "another action": ({"containers": [container(restartPolicyRules=[{"action": "Restart"}])]}, ()),
    "restart all": ({"containers": [container(restartPolicyRules=RULES)]}, (features.RESTART_ALL,)),
    "by an init container": ({"initContainers": [container(restartPolicyRules=RULES)]}, (features.RESTART_ALL,)),
    "host network": ({"hostNetwork": True}, ()),
    "users of its own": ({"hostUsers": False}, ()),
    "host network, the host's users": ({"hostNetwork": True, "hostUsers": True}, ()),
    "host network, users of its own": ({"hostNetwork": True, "hostUsers": False}, (features.USERS_ON_HOST_NETWORK,)),
}


@pytest.mark.parametrize(("fields", "expected"), POD_NEEDS.values(), ids=POD_NEEDS)
def test_a_pod_needs(fields: Raw, expected: tuple[str, ...]) -> None:
    assert pods.pending(pod(**fields)).request.features == expected
