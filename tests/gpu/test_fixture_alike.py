"""The fixture and NVIDIA's own library give the same answers, with a card and, as far as possible, without a driver."""

import json
from pathlib import Path

import pytest

from tests.gpu import machine
from tests.gpu.ask import NO_LIBRARY, VARIABLE, Answers, ask
from tests.gpu.describe import describe, differences
from tests.nvml.fixture import Gpu, NvmlFixture, a100, h100, t4

MODELS = {each.name: each for each in (a100(0), h100(0), t4(0))}
OF_MODELS = ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPages", "nvmlDeviceGetRetiredPagesPendingStatus")
"""Questions that a card refuses because of its model, not because of its machine."""


@pytest.fixture(scope="module")
def real() -> Answers:
    """Return the answers of NVIDIA's library, which every machine with a card has."""
    answers = ask({})
    reason = f"no library of NVIDIA's ({VARIABLE} may name it): {answers.get(NO_LIBRARY)}"
    if NO_LIBRARY in answers and machine.obstacle():
        pytest.skip(reason)
    assert NO_LIBRARY not in answers, reason
    return answers


RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
"""What real machines answered, by model and driver: the output of `python -m tests.gpu.ask`, with an invented UUID."""


def of(fixture: NvmlFixture) -> Answers:
    fixture.write()
    return ask(fixture.environment() | {VARIABLE: str(fixture.library)})


def test_every_answer_of_the_fixture_is_the_real_one(real: Answers, tmp_path: Path) -> None:
    assert differences(real, of(describe(real, tmp_path))) == []


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_the_fixture_answers_as_a_machine_that_was_recorded(file: Path, tmp_path: Path) -> None:
    recorded = json.loads(file.read_text())
    answers = of(describe(recorded, tmp_path))
    # The machine was not asked for functions that the fixture got later.
    later = {name for name in answers if name.startswith("has ")} - recorded.keys()
    assert differences(recorded, {name: answer for name, answer in answers.items() if name not in later}) == []


def test_what_the_fixture_exports_is_there(real: Answers) -> None:
    assert [name for name, there in real.items() if name.startswith("has ") and not there] == []


@pytest.mark.usefixtures("_gpu")
def test_a_model_of_the_fixture_refuses_what_the_real_card_refuses(real: Answers, tmp_path: Path) -> None:
    """The description is copied from the card; the imagined properties of a model are not."""
    described = describe(real, tmp_path)
    known = [(card, MODELS[card.name]) for card in described.gpus if card.name in MODELS]
    if not known:
        pytest.skip(f"the fixture has no model of {described.gpus[0].name}")
    assert [refused(card) for card, _ in known] == [refused(model) for _, model in known]


def refused(card: Gpu) -> tuple[bool, dict[str, int]]:
    return card.mig_capable, {name: code for name, code in card.fails.items() if name in OF_MODELS}
