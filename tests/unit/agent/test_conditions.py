"""Conditions of findings, whatever texts they are made of."""

import pytest

from berth_agent.conditions import Finding
from berth_api.device import MAX_MESSAGE


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param("a" * (MAX_MESSAGE + 1), "a" * MAX_MESSAGE, id="a long answer of the API server"),
        pytest.param("é" * (MAX_MESSAGE + 1), "é" * MAX_MESSAGE, id="characters count, not bytes"),
        pytest.param("no such file: a\udcff", "no such file: a?", id="a file name that is no text"),
    ],
)
def test_a_message_of_any_length_and_form_is_a_condition(message: str, expected: str) -> None:
    assert Finding(type="ClaimsServed", ok=False, reason="R", message=message).condition().message == expected
