"""By the shipped rules, Kueue never counts less for a template than Berth charges."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from berth_api import names, request, resources, words
from berth_api.admission import renaming
from berth_api.allocation import mig
from berth_api.request import DeviceRequest, RequestError
from berth_api.resources import quantity
from berth_api.words.cards import OfCard
from reference import kueue
from tests.unit.api.test_words import OWN, SHARED, SYSTEMS, Raw, holding, of_cards, requested, written

RULES = {rule["input"]: rule for rule in kueue.transformations()}
CORES = "nvidia.com/gpucores"
OTHERS = {"nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"}
"""Next to these, cores are those of cards that are counted."""
TELLING = {"nvidia.com/gpumem", "nvidia.com/gpumem-percentage", CORES, "nvidia.com/priority"}
"""Next to these, `gpu.shared` is the number of cards of their container."""
Count = tuple[int, int]
"""(hundredths of cards, bytes)."""


def counted(spec: Raw) -> Count:
    """Return Kueue's count, by the rule of `applyResourceTransformations` (pkg/workload/workload.go)."""
    total = resources.total(resources.from_limits(spec))
    sums: Counter[str] = Counter()
    for name, amount in total.items():
        rule = RULES[name]
        factor = total.get(rule.get("multiplyBy", ""), 1)
        for output, each in rule["outputs"].items():
            sums[output] += quantity.parse(each) * amount * factor
    return sums[kueue.GPU], sums[kueue.GPU_MEMORY]


def charged(devices: DeviceRequest) -> Count:
    """Return the hundredths of cards that a request takes, and the bytes of memory that it requests as such."""
    hundredths = size = 0
    for part in devices.parts:
        amounts: Mapping[str, int] = dict(part.amounts)
        hundredths += part.count * max(amounts.get(names.GPU_CORE, 0), amounts.get(names.GPU_MEMORY_RATIO, 0))
        size += part.count * amounts.get(names.GPU_MEMORY, 0)
    return hundredths, size


def own(cards: int, each: OfCard) -> Raw:
    amounts = {names.GPU_CORE: each.cores, names.GPU_MEMORY: each.memory, names.GPU_MEMORY_RATIO: each.percent}
    total = {OWN[name]: str(amount * cards) for name, amount in amounts.items() if amount}
    return holding({**total, SHARED: str(cards)} if cards > 1 else total)


@given(cards=st.integers(1, 8), each=of_cards())
def test_berths_own_resources_count_as_they_are_charged_and_cores_in_addition_to_the_ratio(
    cards: int, each: OfCard
) -> None:
    spec = own(cards, each)
    assert charged(requested(words.read(resources.from_limits(spec), {}, {}))) == (
        cards * max(each.cores, each.percent),
        cards * each.memory,
    )
    assert counted(spec) == (cards * (each.cores + each.percent), cards * each.memory)


@given(cards=st.integers(1, 8), each=of_cards())
def test_no_system_has_words_that_count_less_than_they_are_charged(cards: int, each: OfCard) -> None:
    for system in SYSTEMS:
        texts = written(system, cards, each, {})
        if texts is None or texts[1] or texts[2]:
            continue  # annotations and labels are refused in these namespaces
        spec = holding(texts[0])
        (hundredths, size), charge = counted(spec), charged(requested(words.read(resources.from_limits(spec), {}, {})))
        assert hundredths >= charge[0], (system.name, texts)
        assert size >= charge[1], (system.name, texts)
        # At most the cards in addition, and cores in addition to the memory; memory next to whole cards.
        assert hundredths <= 2 * charge[0] + 100 * cards, (system.name, texts)
        assert size == charge[1], (system.name, texts)


PREFIXES = sorted({name.partition("/")[0] for name in RULES})
AMOUNTS = st.one_of(st.integers(1, 9), st.sampled_from([20, 50, 100, 200, 800, 3000, 2**30]))


@st.composite
def templates(draw: st.DrawFn) -> list[dict[str, int]]:
    """Return the limits of containers that request by the resources of one prefix or two; more are mostly invalid."""
    prefixes = tuple(draw(st.sets(st.sampled_from(PREFIXES), min_size=1, max_size=2)))
    of_system = [name for name in sorted(RULES) if name.startswith(prefixes) and not mig.is_resource(name)]
    limits = st.dictionaries(st.sampled_from(of_system), AMOUNTS, min_size=1, max_size=4)
    return draw(st.lists(limits, min_size=1, max_size=2))


def is_refused(limits: list[dict[str, int]]) -> bool:
    """Return whether manifests/components/kueue/policy.yaml refuses it; so it does amounts of 0."""
    cores_alone = any(CORES in each and OTHERS.isdisjoint(each) for each in limits)
    held = {name for each in limits for name in each}
    return cores_alone or (SHARED in held and not TELLING.isdisjoint(held))


@settings(max_examples=200)
@given(templates())
@example([{SHARED: 8, "nvidia.com/gpumem": 3000}])
@example([{SHARED: 8}, {"nvidia.com/priority": 1}])
def test_nothing_that_berth_accepts_counts_less_than_it_is_charged(limits: list[dict[str, int]]) -> None:
    if is_refused(limits):
        return
    spec = holding(*({name: str(amount) for name, amount in each.items()} for each in limits))
    try:
        charge = charged(requested(words.read(resources.from_limits(spec), {}, {})))
    except RequestError:
        return
    count = counted(spec)
    assert count[0] >= charge[0]
    assert count[1] >= charge[1]


def test_cores_alone_are_a_whole_card_by_the_words_of_one_system() -> None:
    """The reason for a rule of manifests/components/kueue/policy.yaml."""
    spec = holding({CORES: "20"})
    assert (counted(spec), charged(requested(words.read(resources.from_limits(spec), {}, {})))) == ((20, 0), (100, 0))


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"nvidia.com/gpu": "2"}, (200, 0)),
        ({"nvidia.com/gpu.shared": "1"}, (100, 0)),
        ({"kubernetes.io/gpu": "50"}, (50, 0)),
        ({"koordinator.sh/gpu-memory": "20Gi"}, (0, 20 * 2**30)),
        ({"nvidia.com/mig-3g.40gb": "1"}, (50, 0)),
        ({"nvidia.com/mig-1g.10gb": "1"}, (25, 0)),
        ({"nvidia.com/mig-7g.80gb": "1"}, (100, 0)),
        ({"nvidia.com/mig-1g.24gb": "1"}, (25, 0)),
        ({"nvidia.com/mig-3g.47gb": "1"}, (50, 0)),
        ({"nvidia.com/mig-2g.48gb-me": "1"}, (50, 0)),
        ({"nvidia.com/gpumem": "3000"}, (0, 3000 * 2**20)),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}, (200, 6000 * 2**20)),
        ({"tencent.com/vcuda-core": "200"}, (200, 0)),
    ],
)
def test_a_request_counts_as_the_page_says(limits: Raw, count: Count) -> None:
    assert counted(holding(limits)) == count


def test_every_resource_that_berth_reads_has_a_rule() -> None:
    read = {row.word.name for row in words.TABLE.rows() if row.word.place == words.WordPlace.RESOURCE}
    refused = {row.word.name for row in words.TABLE.rows() if row.word.role == words.Role.REFUSED}
    assert read - refused <= RULES.keys()
    assert not RULES.keys() & refused
    assert all(mig.is_resource(name) or request.is_device(name) or name in read for name in RULES)


def test_a_pod_of_several_cards_counts_less_once_it_is_renamed() -> None:
    """The reason for a rule of manifests/components/kueue/policy.yaml."""
    limits: dict[str, Any] = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}
    pod = {"metadata": {}, "spec": {"containers": [{"name": "main", "resources": {"requests": limits}}]}}
    renamed = renaming.renamed(pod)["spec"]["containers"][0]["resources"]["requests"]
    assert counted(holding(renamed)) == (0, 3000 * 2**20)
