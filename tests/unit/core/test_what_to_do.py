"""Reasons say what there is and what to do, and are bounded."""

from collections.abc import Mapping

import pytest

from berth_api import names
from berth_api.request.model import of_pod
from berth_api.values import listing
from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest
from tests.builders import A100, GPU, NVIDIA, T4, add, asks, card, divided, fleet, inventory, node_info, waiting


def message(made: Fleet, request: PodRequest | Mapping[str, int]) -> str:
    outcome = decide(made, waiting("pod", request), Policy())
    assert isinstance(outcome, Failure)
    return outcome.message


# --- models -----------------------------------------------------------------------------------------------------


def of_model(**annotations: str) -> PodRequest:
    known = {"exact": names.MODEL_EXACT, "globs": names.MODEL_GLOBS}
    return asks({GPU: 50}, model=of_pod({known[name]: text for name, text in annotations.items()}, {}))


def test_models_that_there_are_are_named_and_the_pattern_as_written() -> None:
    made = fleet({"a": [card(model=T4)], "b": [card()], "gone": [card(model="Gone")]})
    made.remove_device("gone")
    assert message(made, of_model(globs="*H100*, *B200*")) == (
        "0/3 nodes are available: 1 node(s) have no Device, 2 node(s) have too few healthy GPUs of model "
        f"*H100* or *B200* (1 requested; models: {A100}, {T4})."
    )


def test_a_part_of_a_name_is_no_name() -> None:
    assert message(fleet(), of_model(exact="A100")).endswith(
        f"of model A100 (1 requested; models: {A100}; nvidia-gpu-scheduler/gpu.model is the whole name; "
        'for a part of it use berth.dev/gpu-model: "*A100*").'
    )


def test_five_models_are_named_and_the_others_counted() -> None:
    made = fleet({"node": [card(minor, model=f"M{minor}") for minor in range(8)]})
    assert "models: M0, M1, M2, M3, M4 and 3 more)" in message(made, of_model(globs="X"))


def test_a_node_without_models() -> None:
    assert "(1 requested; no GPU has a model)" in message(fleet({"node": [card(model="")]}), of_model(globs="X"))


def test_a_list_is_bounded() -> None:
    assert listing.first_of(map(str, range(5))) == "0, 1, 2, 3, 4"
    assert listing.first_of(map(str, range(9))) == "0, 1, 2, 3, 4 and 4 more"


# --- MIG profiles -----------------------------------------------------------------------------------------------


def test_of_an_unknown_profile_those_that_nodes_offer_are_named() -> None:
    made = fleet({"a": [divided(0, "1g.10gb", "3g.40gb")], "b": [card()]})
    wanted = asks({"nvidia.com/mig-2g.20gb": 1})
    assert message(made, wanted) == (
        "0/2 nodes are available: 2 node(s) have no nvidia.com/mig-2g.20gb "
        "(offered: nvidia.com/mig-1g.10gb, nvidia.com/mig-3g.40gb)."
    )


def test_of_a_profile_that_another_node_offers_none_are_named() -> None:
    made = fleet({"a": [divided(0, "1g.10gb", "3g.40gb")], "b": [card()]})
    assert "1 node(s) have no nvidia.com/mig-3g.40gb, " in message(made, asks({"nvidia.com/mig-3g.40gb": 2}))


# --- agents that are silent --------------------------------------------------------------------------------------

JANUARY, SECOND = 1_767_323_045, "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("heard", "end"),
    [
        pytest.param([0], "1 node(s) have a Device that is not ready.", id="never heard"),
        pytest.param([JANUARY], f"1 node(s) have a Device that is not ready (agent silent since {SECOND}).", id="one"),
        pytest.param(
            [JANUARY + 9, JANUARY, 0],
            f"3 node(s) have a Device that is not ready (agents silent since {SECOND} or later).",
            id="several, as one group",
        ),
        pytest.param(
            [JANUARY, JANUARY],
            f"2 node(s) have a Device that is not ready (agent silent since {SECOND}).",
            id="at once",
        ),
    ],
)
def test_since_when_the_agent_has_been_silent(heard: list[int], end: str) -> None:
    made = Fleet()
    for number, at in enumerate(heard):
        add(made, node_info(f"n{number}"), inventory(card()), fresh=False)
        made.set_heard(f"n{number}", at)
    assert message(made, {NVIDIA: 1}).endswith(end)


# --- resources --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        pytest.param(
            {"kubernetes.io/gpu-mem": 1, "nvidia.com/gpus": 1, "example.com/wand": 1},
            "no node has example.com/wand, kubernetes.io/gpu-mem (did you mean kubernetes.io/gpu-memory?), "
            "nvidia.com/gpus (did you mean nvidia.com/gpu?)",
            id="all of them",
        ),
        pytest.param(
            {"nvidia.com/gpumem": 1},
            "no node has nvidia.com/gpumem (did you mean kubernetes.io/gpu-memory?)",
            id="HAMi",
        ),
        pytest.param(
            {"example.com/licenses": 1},
            "no node has example.com/licenses (did you mean example.com/licence?)",
            id="a name that nodes have",
        ),
        pytest.param({"example.com/wand": 1}, "", id="nothing near"),
        pytest.param(
            {**{f"example.com/a-{number}": 1 for number in range(listing.SHOWN)}, "nvidia.com/gpus": 1},
            "",
            id="near, but not among those that are listed and compared",
        ),
        pytest.param({"example.com/licence": 9}, "", id="known, but too few"),
        pytest.param({"cpu": 1_000_000}, "", id="no extended resource"),
    ],
)
def test_of_unknown_resources_the_nearest_names_are_suggested(wanted: dict[str, int], hint: str) -> None:
    made = Fleet()
    made.put_node(node_info(more={"example.com/licence": 1}))
    text = message(made, wanted)
    assert all(f"1 Insufficient {name}" in text for name in wanted)
    assert text.partition(". ")[2] == hint


def test_without_nodes_no_resource_is_unknown() -> None:
    assert message(Fleet(), {"nvidia.com/gpus": 1}) == "no nodes available to schedule pods"
