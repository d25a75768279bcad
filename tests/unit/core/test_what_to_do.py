"""Reasons show what exists and what to do, and are bounded."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson
import pytest

from berth_api import names
from berth_api.request.model import of_pod
from berth_api.values import listing
from berth_api.values.selectors import Requirement
from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest
from berth_operator.state.objects import pods
from tests.objects.builders import (
    A100,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    T4,
    add,
    asks,
    card,
    charge,
    divided,
    fleet,
    grant,
    inventory,
    node_info,
    pod,
    sliced,
    waiting,
)

SLICES = "nvidia.com/gpu.shared"


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
    assert listing.first_of(map(str, range(6))) == "0, 1, 2, 3, 4, 5"
    assert listing.first_of(map(str, range(9))) == "0, 1, 2, 3, 4 and 4 more"


def test_models_are_listed_once_for_whole_and_sliced_cards() -> None:
    made = fleet(
        {"whole": [card(minor, model=f"M{minor}") for minor in range(6)], "sliced": [sliced(0, 4, model="M0")]}
    )
    wanted = asks({NVIDIA: 1}, model=of_pod({names.MODEL_GLOBS: "X"}, {}))
    assert message(made, wanted) == (
        "0/2 nodes are available: 2 node(s) have too few healthy GPUs of model X "
        "(1 requested; models: M0, M1, M2, M3, M4, M5)."
    )


# --- counts ----------------------------------------------------------------------------------------------------------


def test_how_many_the_best_node_has() -> None:
    made = fleet({"three": [card(i) for i in range(3)], "two": [card(0), card(1)], "four": [card(i) for i in range(4)]})
    add(made, node_info("silent"), inventory(*(card(i) for i in range(8))), fresh=False)
    assert message(made, {NVIDIA: 4 + 1}) == (
        "0/4 nodes are available: 1 node(s) have a Device that is not ready (agent never heard), "
        "3 node(s) have too few healthy GPUs (5 requested, at most 4 on a node)."
    )


def test_how_many_slices_the_best_node_has() -> None:
    made = fleet({"a": [sliced(0, 4)], "b": [sliced(0, 4), sliced(1, 4)]})
    assert message(made, {SLICES: 9}) == (
        "0/2 nodes are available: 2 node(s) have too few nvidia.com/gpu.shared (9 requested, at most 8 on a node)."
    )


def test_memory_is_in_the_unit_that_the_user_wrote() -> None:
    made = fleet({"a": [card(0)]})
    made.charge(charge("other", grant(0, core=100, ratio=100, memory=80 * GI), node="a"))
    assert "(1 requested with gpu-memory 10G)" in message(made, {MEMORY: 10**10})
    assert "(at most 83201216Ki of 100G)" in message(made, {MEMORY: 10**11})


# --- selectors --------------------------------------------------------------------------------------------------------


def test_the_selector_that_no_card_meets_is_named() -> None:
    selector = {"matchLabels": {"rack": "b7"}, "matchExpressions": [{"key": "slot", "operator": "DoesNotExist"}]}
    hint = {names.ALLOCATE_HINT: orjson.dumps({"gpu": {"selector": selector}}).decode()}
    waiting_pod = pods.pending(pod(requests={NVIDIA: "1"}, annotations=hint))
    assert message(fleet({"a": [card(0)]}), waiting_pod.request) == (
        "0/1 nodes are available: 1 node(s) have too few healthy GPUs that match the pod's device selector "
        "rack=b7,!slot (1 requested)."
    )


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
    ("heard", "why"),
    [
        pytest.param([0], "agent never heard", id="never heard"),
        pytest.param([JANUARY], f"agent silent since {SECOND}", id="one"),
        pytest.param([JANUARY + 9, JANUARY, 0], f"agents silent since {SECOND} or later", id="several, as one group"),
        pytest.param([JANUARY, JANUARY], f"agent silent since {SECOND}", id="at once"),
    ],
)
def test_since_when_the_agent_has_been_silent(heard: list[int], why: str) -> None:
    made = Fleet()
    for number, at in enumerate(heard):
        add(made, node_info(f"n{number}"), inventory(card()), fresh=False)
        made.set_heard(f"n{number}", at)
    assert message(made, {NVIDIA: 1}).endswith(f"{len(heard)} node(s) have a Device that is not ready ({why}).")


# --- models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["pool", "nvidia.com/gpu.product"])
def test_a_label_of_a_model_that_no_node_has(label: str) -> None:
    made = Fleet()
    add(made, node_info("n"), inventory(card()))
    selector = (Requirement(key=label, values=("NVIDIA-L4",)),)
    failure = decide(made, waiting("a", replace(asks({NVIDIA: 1}), node_selector=selector)), Policy())
    assert isinstance(failure, Failure)
    hint = 'no node has such a label nvidia.com/gpu.product: write the annotation berth.dev/gpu-model: "NVIDIA?L4".'
    assert failure.message.endswith(hint) is (label != "pool")


# --- resources --------------------------------------------------------------------------------------------------


ONE_FAMILY = {"kubernetes.io/gpu-mem": 1, "nvidia.com/gpus": 1, "example.com/wand": 1}
NEAREST_OF_EACH = (
    "example.com/wand, kubernetes.io/gpu-mem (did you mean kubernetes.io/gpu-memory?), "
    "nvidia.com/gpus (did you mean nvidia.com/gpu?)"
)
MANY = {**{f"example.com/a-{number}": 1 for number in range(listing.SHOWN)}, "nvidia.com/gpus": 1}
BERTHS = "berth.dev/gpu-memory (did you mean kubernetes.io/gpu-memory?), nvidia.com/licence"


@pytest.mark.parametrize(
    ("wanted", "unknown"),
    [
        pytest.param(ONE_FAMILY, NEAREST_OF_EACH, id="all of them"),
        pytest.param(["nvidia.com/gpumem"], "nvidia.com/gpumem (did you mean kubernetes.io/gpu-memory?)", id="HAMi"),
        pytest.param(["nvidia.com/gpumem-percentage"], "nvidia.com/gpumem-percentage", id="of others, no such word"),
        pytest.param(
            ["berth.dev/gpu"],
            "berth.dev/gpu (did you mean kubernetes.io/gpu, in hundredths of a card?)",
            id="Berth's own domain",
        ),
        pytest.param(["berth.dev/gpu-memory", "nvidia.com/licence"], BERTHS, id="no name of another domain is meant"),
        pytest.param(
            ["example.com/licenses"], "example.com/licenses (did you mean example.com/licence?)", id="nodes have it"
        ),
        pytest.param(
            {"slurm.schedmd.com/gpu": 2},
            "slurm.schedmd.com/gpu (did you mean kubernetes.io/gpu: 200, in hundredths of a card?)",
            id="another domain",
        ),
        pytest.param(["rdma/shared_ib"], "rdma/shared_ib", id="NICs of another plugin"),
        pytest.param(["example.com/wand"], "", id="nothing near"),
        pytest.param(MANY, "", id="near, but not among those that are listed and compared"),
        pytest.param({"example.com/licence": 9}, "", id="known, but too few"),
        pytest.param({"cpu": 1_000_000}, "", id="no extended resource"),
    ],
)
def test_of_unknown_resources_the_nearest_names_are_suggested(
    wanted: Mapping[str, int] | Sequence[str], unknown: str
) -> None:
    made = Fleet()
    made.put_node(node_info(more={"example.com/licence": 1}))
    text = message(made, wanted if isinstance(wanted, Mapping) else dict.fromkeys(wanted, 1))
    assert all(f"1 Insufficient {name}" in text for name in wanted)
    assert text.partition(". ")[2] == (f"no node has {unknown}." if unknown else "")


def test_without_nodes_no_resource_is_unknown() -> None:
    assert message(Fleet(), {"nvidia.com/gpus": 1}) == "no nodes available to schedule pods"
