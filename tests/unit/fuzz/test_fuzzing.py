"""Every parser of hostile or damaged input: seeds of earlier findings, and a small fixed set of new inputs."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz import inputs
from tests.fuzz.target import MAX_MESSAGE, Target, TooLongError, TooSlowError, check, decoded, encoded
from tests.fuzz.targets import TARGETS

SEEDS = Path(__file__).parents[2] / "fuzz" / "seeds"
EXAMPLES = 20
"""Inputs of each parser; `make fuzz` draws more of them."""


def seeds() -> list[Any]:
    """Return (target, input) of each seed; its id says what was wrong."""
    files = sorted(SEEDS.glob("*.json"))
    listed = [(file.stem, seed) for file in files for seed in json.loads(file.read_text())]
    return [pytest.param(name, seed["input"], id=f"{name}: {seed['why']}") for name, seed in listed]


@pytest.mark.parametrize(("name", "seed"), seeds())
def test_a_finding_stays_mended(name: str, seed: Any) -> None:
    check(TARGETS[name], decoded(seed))


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_returns_a_value_or_raises_its_own_error(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(target.inputs)
    def each(value: Any) -> None:
        check(target, value)

    each()


def failing(error: Exception) -> Target:
    def fail(_: Any) -> None:
        raise error

    return Target(name="t", inputs=inputs.texts, parse=fail, errors=(ValueError,))


def test_other_errors_and_long_texts_are_findings() -> None:
    check(failing(ValueError("short")), "")
    with pytest.raises(KeyError):
        check(failing(KeyError("a")), "")
    with pytest.raises(TooLongError, match="characters of an error"):
        check(failing(ValueError("a" * (MAX_MESSAGE + 1))), "")


def test_too_much_processor_time_is_a_finding() -> None:
    with pytest.raises(TooSlowError):
        check(Target(name="t", inputs=inputs.texts, parse=lambda _: sum(range(10**5)), seconds=0.0), "")


@pytest.mark.parametrize("value", ["a", 5, [None, {"a": "b"}], b"\x80", b"text"])
def test_a_seed_gives_its_input(value: Any) -> None:
    assert decoded(json.loads(json.dumps(encoded(value)))) == value


def test_a_seed_may_shorten_a_long_text() -> None:
    assert decoded({"utf8": {"join": [{"repeat": ["(", 3]}, "a"]}}) == b"(((a"
