"""The table of other systems' words: a request that means the same in two systems is the same request."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from berth_api import names, request, resources, words
from berth_api.request import DeviceRequest, RequestError, model
from berth_api.words import TABLE, Role, System, UnitError, WordPlace
from berth_api.words.cards import OfCard

Raw = dict[str, Any]
MIB, GIB = 2**20, 2**30
BLOCK = 256 * MIB
OWN = {name: f"{names.PREFIX}{name}" for name in (names.GPU_CORE, names.GPU_MEMORY, names.GPU_MEMORY_RATIO)}
SHARED = f"{names.PREFIX}{names.GPU_SHARED}"
SYSTEMS = [each for each in TABLE.systems if any(word.role in words.AMOUNTS for word in each.words)]
MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "Tesla T4", "Odd [A] *?! Model")


def read(spec: Raw, annotations: Mapping[str, str] = {}, labels: Mapping[str, str] = {}, **more: Any) -> words.Reading:
    return words.read(resources.from_limits(spec), annotations, labels, **more)


def requested(reading: words.Reading) -> DeviceRequest:
    total = resources.total(resources.from_limits(reading.spec))
    return request.of_pod(total, reading.annotations, reading.labels)


def holding(*limits: Raw) -> Raw:
    return {
        "containers": [{"name": f"main-{number}", "resources": {"limits": each}} for number, each in enumerate(limits)]
    }


def written(system: System, cards: int, each: OfCard, units: Mapping[str, int]) -> tuple[Raw, Raw, Raw] | None:
    """Return resources, annotations and labels that say so; None if the system has no words for it."""
    by_role = {word.role: word for word in reversed(system.words)}
    values = in_hundredths(cards, each) if Role.HUNDREDTHS in by_role else in_amounts(system, cards, each)
    if Role.FRACTION in by_role and Role.PERCENT in values:
        values[Role.FRACTION] = f"{values.pop(Role.PERCENT) / 100:g}"
    if Role.MEMORY in values and Role.MEMORY in by_role:
        word = by_role[Role.MEMORY]
        values[Role.MEMORY], rest = divmod(values[Role.MEMORY], units.get(word.name, word.unit))
        if rest:
            return None
    if cards == 1 and Role.CARDS not in by_role:
        values.pop(Role.CARDS, None)
    if not values or not values.keys() <= by_role.keys():
        return None

    def at(place: WordPlace) -> Raw:
        return {by_role[role].name: str(value) for role, value in values.items() if by_role[role].place == place}

    return at(WordPlace.RESOURCE), at(WordPlace.ANNOTATION), at(WordPlace.LABEL)


def in_amounts(system: System, cards: int, each: OfCard) -> dict[Role, Any]:
    times = cards if system.total else 1
    amounts = {Role.MEMORY: each.memory * times, Role.PERCENT: each.percent, Role.CORES: each.cores * times}
    return {Role.CARDS: cards, **{role: amount for role, amount in amounts.items() if amount}}


def in_hundredths(cards: int, each: OfCard) -> dict[Role, Any]:
    if each.percent == each.cores == 100:
        return {Role.HUNDREDTHS: 100 * cards}
    is_part = cards == 1 and each.memory and 0 < each.cores < 100
    return {Role.HUNDREDTHS: each.cores, Role.MEMORY: each.memory} if is_part else {}


def own(cards: int, each: OfCard) -> DeviceRequest:
    """Return the same in Berth's resources, as docs/protocol.md has them."""
    amounts = {names.GPU_CORE: each.cores, names.GPU_MEMORY: each.memory, names.GPU_MEMORY_RATIO: each.percent}
    total = {OWN[name]: amount * cards for name, amount in amounts.items() if amount}
    return request.of_resources({**total, SHARED: cards} if cards > 1 else total)


@st.composite
def of_cards(draw: st.DrawFn) -> OfCard:
    memory = draw(st.sampled_from([0, 1, 3, 4, 12, 320])) * BLOCK
    percent = 0 if memory else draw(st.one_of(st.just(100), st.integers(1, 100)))
    return OfCard(memory=memory, percent=percent, cores=draw(st.one_of(st.sampled_from([0, 100]), st.integers(0, 100))))


UNITS = st.dictionaries(st.sampled_from(sorted(TABLE.units())), st.sampled_from([MIB, 16 * MIB, BLOCK]))


@given(cards=st.integers(1, 8), each=of_cards(), units=UNITS)
def test_the_same_in_the_words_of_every_system_is_the_same_request(
    cards: int, each: OfCard, units: Mapping[str, int]
) -> None:
    said = 0
    for system in SYSTEMS:
        if (texts := written(system, cards, each, units)) is None:
            continue
        said += 1
        limits, annotations, labels = texts
        reading = read(holding(limits), annotations, labels, units=units)
        assert requested(reading) == own(cards, each), (system.name, texts)
        [part] = requested(reading).parts
        kept = {names.GPU_CORE: each.cores, names.GPU_MEMORY: each.memory, names.GPU_MEMORY_RATIO: each.percent}
        assert (part.count, dict(part.amounts)) == (cards, {name: amount for name, amount in kept.items() if amount})
        again = words.read(reading.spec, reading.annotations, reading.labels, units)
        assert (again.spec, again.words) == (reading.spec, ())
        assert (again.annotations, again.labels) == (reading.annotations, reading.labels)
    assert said


@given(first=st.integers(1, 3), second=st.integers(1, 3), each=of_cards())
def test_containers_that_take_the_same_of_each_card_have_cards_of_their_own(
    first: int, second: int, each: OfCard
) -> None:
    for system in SYSTEMS:
        texts = [written(system, cards, each, {}) for cards in (first, second)]
        if None in texts or any(text[1] or text[2] for text in texts if text):
            continue
        reading = read(holding(*(text[0] for text in texts if text)))
        assert requested(reading) == own(first + second, each)


@given(first=of_cards(), second=of_cards())
def test_containers_that_take_different_parts_of_a_card_share_one_or_are_refused(first: OfCard, second: OfCard) -> None:
    assume(first != second)
    for system in SYSTEMS:
        texts = [written(system, 1, each, {}) for each in (first, second)]
        if None in texts or any(text[1] or text[2] for text in texts if text):
            continue
        spec = holding(*(text[0] for text in texts if text))
        both = OfCard(
            memory=first.memory + second.memory,
            percent=first.percent + second.percent,
            cores=first.cores + second.cores,
        )
        if bool(first.memory) == bool(second.memory) and both.percent <= 100 and both.cores <= 100:
            assert requested(read(spec)) == own(1, both)
        else:
            with pytest.raises(
                RequestError, match=r"main-0 .* and main-1 .* request differently of cards; .* two pods"
            ):
                read(spec)


PARTS = st.text(alphabet="aA01*?[]! tTgG", min_size=1, max_size=4).filter(lambda text: text.strip())


@given(used=st.lists(PARTS, max_size=2), unused=st.lists(PARTS, max_size=2), card=st.sampled_from(MODELS))
def test_a_part_of_a_models_name_selects_it_as_it_is_written(used: list[str], unused: list[str], card: str) -> None:
    lists = {"nvidia.com/use-gputype": used, "nvidia.com/nouse-gputype": unused}
    reading = read(holding({}), {name: ",".join(parts) for name, parts in lists.items() if parts})
    has = [any(part.strip().lower() in card.lower() for part in parts) for parts in (used, unused)]
    accepted = (not used or has[0]) and not has[1]
    assert model.of_pod(reading.annotations, reading.labels).accepts(card) is accepted


# --- the table ------------------------------------------------------------------------------------------------


def test_a_name_has_one_row_in_its_place() -> None:
    counted = Counter((row.word.place, row.word.name) for row in TABLE.rows())
    assert [name for name, count in counted.items() if count > 1] == []


def test_every_row_says_what_it_means_and_what_to_do() -> None:
    for row in TABLE.rows():
        word = row.word
        assert word.means, word.name
        assert bool(word.answer) is (word.role in (Role.NO_EFFECT, Role.REFUSED)), word.name
        assert bool(word.choices) is (word.role in (Role.CHOICE, Role.MENTION)), word.name
        assert not word.is_set or word.role == Role.MEMORY, word.name
        assert bool(word.renamed) is word.by_plugin, word.name


def test_the_names_of_systems_stand_in_the_table_alone() -> None:
    """A new system is rows, not code."""
    folder = __import__("pathlib").Path(words.__file__).parent
    own_names = re.compile(
        "|".join(re.escape(name) for name in ("hami", "kai", "volcano", "aliyun", "tencent", "runai"))
    )
    for file in folder.glob("*.py"):
        if file.name != "systems.py":
            assert own_names.search(file.read_text().lower()) is None, file.name


# --- errors ---------------------------------------------------------------------------------------------------

MEMORY = {"nvidia.com/gpumem": "3000"}


WHAT_CANNOT_BE_READ_IS_ANSWERED = {
    "a fraction": ({"nvidia.com/gpumem": "0.5"}, {}, "nvidia.com/gpumem: 0.5; allowed are whole numbers from 1"),
    "bytes": (
        {"nvidia.com/gpumem": "3Gi"},
        {},
        "nvidia.com/gpumem: 3Gi; allowed are whole numbers from 1, each of 1Mi; did you mean 3072?",
    ),
    "no card": ({**MEMORY, "nvidia.com/gpu": "0"}, {}, "nvidia.com/gpu: 0; allowed are whole numbers from 1"),
    "cores": ({**MEMORY, "nvidia.com/gpucores": "101"}, {}, "nvidia.com/gpucores: 101; allowed are 1 to 100"),
    "no quantity": ({**MEMORY, "nvidia.com/gpu": "many"}, {}, 'nvidia.com/gpu: "many" is not a quantity'),
    "cores that cannot be spread": (
        {"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "3", "aliyun.com/gpu-count": "2"},
        {},
        "aliyun.com/gpu-core.percentage: 3; allowed are multiples of 2, up to 200",
    ),
    "two numbers of cards": (
        {"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-count": "2"},
        {"labels": {"aliyun.com/gpu-count": "4"}},
        "aliyun.com/gpu-count: 2 and label aliyun.com/gpu-count: 4; allowed is one of them",
    ),
    "one card and a half": (
        {"tencent.com/vcuda-core": "150"},
        {},
        "tencent.com/vcuda-core: 150; allowed are 1 to 100 (part of a card) or multiples of 100",
    ),
    "cards without memory": (
        {},
        {"annotations": {"gpu-fraction-num-devices": "2"}},
        "annotation gpu-fraction-num-devices: 2; it needs annotation gpu-fraction or annotation gpu-memory, too",
    ),
    "a quantity in an annotation": (
        {},
        {"annotations": {"gpu-memory": "2Gi"}},
        "annotation gpu-memory: 2Gi; allowed are whole numbers from 1",
    ),
    "no number": (
        {},
        {"annotations": {"gpu-fraction": "half"}},
        "annotation gpu-fraction: half; allowed are hundredths of a card, such as 0.25, up to 1",
    ),
    "two models": (
        MEMORY,
        {"annotations": {"nvidia.com/use-gputype": "A100", names.MODEL_GLOBS: "*H100*"}},
        "annotation nvidia.com/use-gputype and annotation berth.dev/gpu-model: *H100* differ; write one of the two",
    ),
    "no model": (
        MEMORY,
        {"annotations": {"nvidia.com/use-gputype": " , "}},
        'annotation nvidia.com/use-gputype: " , "; allowed is a list, joined by commas',
    ),
    "no hint": (
        MEMORY,
        {"annotations": {"nvidia.com/use-gpuuuid": "GPU-1", names.ALLOCATE_HINT: "[]"}},
        "annotation scheduling.koordinator.sh/device-allocate-hint: not a hint with a selector",
    ),
    "a deep hint": (
        MEMORY,
        {"annotations": {"nvidia.com/use-gpuuuid": "GPU-1", names.ALLOCATE_HINT: '{"a":' * 300 + "1" + "}" * 300}},
        "annotation scheduling.koordinator.sh/device-allocate-hint: not a hint with a selector: Recursion limit",
    ),
    "no such mode": (
        MEMORY,
        {"annotations": {"nvidia.com/vgpu-mode": "magic"}},
        'annotation nvidia.com/vgpu-mode: "magic"; allowed are hami-core, mig, mps',
    ),
}


@pytest.mark.parametrize(
    ("limits", "metadata", "message"), WHAT_CANNOT_BE_READ_IS_ANSWERED.values(), ids=WHAT_CANNOT_BE_READ_IS_ANSWERED
)
def test_what_cannot_be_read_is_answered(limits: Raw, metadata: Raw, message: str) -> None:
    with pytest.raises(RequestError) as error:
        read(holding(limits), metadata.get("annotations", {}), metadata.get("labels", {}))
    assert str(error.value).startswith(message)


def test_cards_are_chosen_in_addition_to_the_pods_own_selector() -> None:
    hint = '{"gpu": {"selector": {"matchLabels": {"rack": "a"}}}, "rdma": {"exclusivePolicy": "DeviceLevel"}}'
    reading = read(holding(MEMORY), {"nvidia.com/use-gpuuuid": "GPU-1, GPU-2", names.ALLOCATE_HINT: hint})
    [part] = requested(reading).parts
    assert [(each.key, each.operator, each.values) for each in part.selector.requirements] == [
        (names.DEVICE_UUID, "In", ("GPU-1", "GPU-2")),
        ("rack", "In", ("a",)),
    ]
    assert '"rdma":{"exclusivePolicy":"DeviceLevel"}' in reading.annotations[names.ALLOCATE_HINT]


def test_the_count_stays_when_admission_has_renamed_what_a_device_plugin_would_allocate() -> None:
    renamed, whole = ({SHARED: "2", **MEMORY}, {"nvidia.com/gpu": "2", **MEMORY})
    assert requested(read(holding(renamed))) == requested(read(holding(whole)))


def test_a_pod_without_words_is_returned_as_it_is() -> None:
    spec, annotations, labels = holding({"nvidia.com/gpu": "2", "cpu": "1"}), {"a": "b"}, {"c": "d"}
    reading = words.read(spec, annotations, labels)
    assert reading.spec is spec
    assert reading.annotations is annotations
    assert reading.labels is labels
    assert (reading.words, reading.notes) == ((), ())


# --- units ----------------------------------------------------------------------------------------------------


def test_units_are_read() -> None:
    assert words.read_units("") == {}
    assert words.read_units("aliyun.com/gpu-mem=1Mi,volcano.sh/vgpu-memory=10Mi") == {
        "aliyun.com/gpu-mem": MIB,
        "volcano.sh/vgpu-memory": 10 * MIB,
    }
    assert words.checked_units("aliyun.com/gpu-mem=1Gi") == "aliyun.com/gpu-mem=1Gi"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("cpu=1", '"cpu"; allowed are nvidia.com/gpumem, ', id="no word"),
        pytest.param("aliyun.com/gpu-mem", 'aliyun.com/gpu-mem: "" is not a quantity', id="no unit"),
        pytest.param("aliyun.com/gpu-mem=0", "aliyun.com/gpu-mem=0; allowed are sizes such as 1Mi", id="nothing"),
    ],
)
def test_units_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(UnitError) as error:
        words.read_units(text)
    assert str(error.value).startswith(message)
