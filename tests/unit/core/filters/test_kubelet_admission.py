"""The filter of nodes whose kubelets keep rejecting the pods of a controller."""

from dataclasses import replace

import numpy as np
import pytest

from berth_operator.core.filters import kubelet_admission
from berth_operator.core.filters.reasons import count_reasons
from berth_operator.core.fleet.fleet import Fleet
from tests.objects.builders import asks, node_info

TEXT = "node(s) rejected pods of this controller ({}): the next one is bound there after a pause"


def fleet_of(*names: str) -> Fleet:
    fleet = Fleet()
    for name in names:
        fleet.put_node(node_info(name))
    return fleet


def test_nodes_that_reject_the_controllers_pods_are_left_out_and_counted_by_kubelets_reason() -> None:
    fleet = fleet_of("a", "b", "c", "d")
    fleet.rejecting["web"] = {"a": "OutOfcpu", "b": "NodeAffinity", "c": "OutOfcpu", "gone": "OutOfpods"}
    request = replace(asks(), rejected_controller="web")
    passed = kubelet_admission.passes(fleet, request)
    assert [fleet.names[row] for row in np.flatnonzero(passed)] == ["d"]
    counts = count_reasons(kubelet_admission.reasons(fleet, request, fleet.present & ~passed))
    assert counts == {TEXT.format("OutOfcpu"): 2, TEXT.format("NodeAffinity"): 1}


@pytest.mark.parametrize("controller", ["", "other", "ended"])
def test_other_pods_get_the_fleets_own_mask(controller: str) -> None:
    fleet = fleet_of("a")
    fleet.rejecting |= {"web": {"a": "OutOfcpu"}, "ended": {}}
    request = replace(asks(), rejected_controller=controller)
    assert kubelet_admission.passes(fleet, request) is fleet.present
