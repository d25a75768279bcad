"""The typical mix of pods."""

import numpy as np
import orjson
import pytest

from berth_api.request.model import ANY_MODEL, ModelConstraint
from berth_operator.core.fleet.pods import pod_mix, pod_mix_document
from berth_operator.core.fleet.pods.pod_mix import PodMix
from tests.objects.builders import CORE, GPU, MEMORY, NVIDIA, RATIO, asks

T4 = ModelConstraint(globs=("t4",))


def mix(*pods: dict[str, int], model: ModelConstraint = ANY_MODEL) -> PodMix:
    made = PodMix()
    for each in pods:
        made.see(asks(each, model=model))
    return made


def demand(of: PodMix) -> dict[ModelConstraint, float]:
    return dict(zip(of.typical.constraints, of.typical.demand.tolist(), strict=True))


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([], 0, id="no pod was seen"),
        pytest.param([{"cpu": 4000}], 0, id="pods without cards do not count"),
        pytest.param([{"cpu": 4000, GPU: 50}], 8000, id="half a card"),
        pytest.param([{"cpu": 4000, NVIDIA: 4}], 1000, id="four cards"),
        pytest.param([{"cpu": 1000, CORE: 20, RATIO: 50}], 2000, id="core or memory, whichever is more"),
        pytest.param([{"cpu": 1000, MEMORY: 5}], 0, id="bytes alone are ignored"),
        pytest.param([{GPU: 100}], 0, id="no cpu"),
        pytest.param([{"cpu": 9000, GPU: 100}, {"cpu": 1000, GPU: 100}], 5000, id="the mean"),
    ],
)
def test_the_cpu_that_goes_with_a_card(pods: list[dict[str, int]], expected: float) -> None:
    assert mix(*pods).typical.cpu_per_card == pytest.approx(expected, rel=0.02)


def test_the_latest_pods_count_most() -> None:
    made, early, late = PodMix(), asks({"cpu": 1000, GPU: 100}), asks({"cpu": 3000, GPU: 100})
    for _ in range(pod_mix.HALF_LIFE):
        made.see(early)
    halved = made.typical.cpu_per_card
    for _ in range(pod_mix.HALF_LIFE):
        made.see(late)
    assert halved == pytest.approx(1000)
    # The first pods count half, so that a third of the weight is theirs.
    assert made.typical.cpu_per_card == pytest.approx((1000 + 2 * 3000) / 3, rel=0.2)
    assert made.typical.cpu_per_card > 2000


def test_models_and_large_pods_that_no_longer_come_are_forgotten() -> None:
    made, request = mix({NVIDIA: 8}, model=T4), asks({NVIDIA: 2})
    assert (made.typical.constrained, demand(made)) == (True, {T4: 1.0})
    for _ in range(45 * pod_mix.HALF_LIFE):
        made.see(request)
    assert (made.typical.constrained, demand(made)) == (False, {ANY_MODEL: 1.0})
    assert large(made) == {(2, 0, ANY_MODEL): 1.0}


def test_demand_is_shared_by_what_pods_ask_for() -> None:
    made = mix({GPU: 300})
    made.see(asks({GPU: 100}, model=T4))
    assert demand(made)[T4] == pytest.approx(0.25, rel=0.02)
    assert demand(made)[ANY_MODEL] == pytest.approx(0.75, rel=0.02)


def test_the_share_of_typical_pods_that_lack_cpu() -> None:
    # Four cards with a processor each, and half cards with two, a little more, and with more than any node has.
    made = mix({"cpu": 4000, GPU: 400}, {"cpu": 2000, GPU: 50}, {"cpu": 2100, GPU: 50}, {"cpu": 900_000, GPU: 50})
    cpu = np.array([-1, 0, 999, 1000, 2000, 2250, 10**9])
    expected = [1.0, 1.0, 1.0, 150 / 550, 100 / 550, 50 / 550, 0.0]
    assert made.typical.starved(cpu) == pytest.approx(expected, abs=0.02)


def test_no_typical_pod_starves_before_the_first_pod() -> None:
    assert PodMix().typical.starved(np.array([0, 1000])).tolist() == [1.0, 1.0]


def test_shares_are_common_if_they_come_often() -> None:
    made = mix(*[{GPU: 47}] * 60, *[{GPU: 81}] * 37, *[{CORE: 10, RATIO: 20}] * 3, {GPU: 33}, {NVIDIA: 1}, {GPU: 200})
    assert made.typical.common == (47, 81)
    assert mix({NVIDIA: 1}).typical.common == ()


def large(of: PodMix) -> dict[tuple[int, int, ModelConstraint], float]:
    kinds = ((kind.cards, kind.cpu, kind.model) for kind in of.typical.large)
    return dict(zip(kinds, of.typical.large_demand.tolist(), strict=True))


def test_large_pods_are_those_with_several_cards() -> None:
    made = mix({"cpu": 4000, NVIDIA: 1}, {GPU: 50}, {"cpu": 64_000, NVIDIA: 8}, {"cpu": 32_000, NVIDIA: 4})
    made.see(asks({"cpu": 32_000, NVIDIA: 4}, model=T4))
    expected = {(8, 64_000, ANY_MODEL): 0.5, (4, 32_000, ANY_MODEL): 0.25, (4, 32_000, T4): 0.25}
    assert large(made) == pytest.approx(expected, rel=0.02)
    assert large(mix({NVIDIA: 1})) == {}


def test_the_kinds_of_large_pods_are_limited_to_those_with_most_demand() -> None:
    made = mix(*[{"cpu": 64_000, NVIDIA: 8}] * 9)
    for number in range(2 * pod_mix.MAX_COUNTED):
        made.see(asks({"cpu": number, NVIDIA: 2}))
    assert len(made.counts.large) == pod_mix.MAX_COUNTED
    assert len(large(made)) == pod_mix.MAX_LARGE
    assert max(large(made), key=large(made).__getitem__) == (8, 64_000, ANY_MODEL)


def test_users_cannot_fill_the_mix_with_constraints() -> None:
    made = PodMix()
    for number in range(1000):
        made.see(asks({NVIDIA: 1}, model=T4))
        made.see(asks({NVIDIA: 1}, model=ModelConstraint(globs=(f"hostile-{number}",))))
    assert len(made.typical.constraints) <= pod_mix.MAX_CONSTRAINTS
    assert T4 in made.typical.constraints


def test_a_saved_mix_continues_exactly() -> None:
    made = PodMix()
    models = (ANY_MODEL, T4, ModelConstraint(exact="H100", regex="H.*", globs=("a", "b"), excluded=("c",)))
    for number in range(700):
        asked = {NVIDIA: number % 5} if number % 3 else {GPU: number % 100}
        made.see(asks({"cpu": 100 * (number % 37), **asked}, model=models[number % 3]))
    again = pod_mix_document.of_document(orjson.loads(orjson.dumps(pod_mix_document.document(made))))
    for _ in range(2):
        assert pod_mix_document.document(again) == pod_mix_document.document(made)
        assert again.typical.enough.tolist() == made.typical.enough.tolist()
        for each in (made, again):
            each.see(asks({"cpu": 7_000, NVIDIA: 2}, model=T4))
            each.see(asks({"cpu": 300, GPU: 40}))


def test_a_mix_before_any_pod_can_be_saved() -> None:
    again = pod_mix_document.of_document(pod_mix_document.document(PodMix()))
    again.see(asks({"cpu": 1000, GPU: 100}))
    assert again.typical.cpu_per_card == mix({"cpu": 1000, GPU: 100}).typical.cpu_per_card
