"""`genius/priority`: any user can write it, so the operator's setting for the namespace bounds it."""

import pytest

from berth_api import names
from berth_operator.state.objects import genius_priority, pods
from tests.objects.builders import pod

LIMITS = genius_priority.read_limits("team-a=10,*=5,team-b=0")


@pytest.mark.parametrize(
    ("namespace", "text", "weight"),
    [
        pytest.param("team-a", "10", 10, id="the highest"),
        pytest.param("other", "5", 5, id="the highest of all others"),
        pytest.param("team-b", "0", 0, id="nothing allowed"),
        pytest.param("team-b", "-2147483648", -(2**31), id="the lowest"),
    ],
)
def test_a_value_within_the_limit_counts(namespace: str, text: str, weight: int) -> None:
    raw = pod(labels={names.GENIUS_PRIORITY: text}, metadata={"namespace": namespace})
    pending = pods.pending(raw, priorities=LIMITS)
    assert (pending.error, pending.weight) == ("", weight)


@pytest.mark.parametrize(
    ("namespace", "text", "words"),
    [
        pytest.param("team-a", "11", "allowed in namespace team-a are whole numbers up to 10", id="above its own"),
        pytest.param("other", "6", "allowed in namespace other are whole numbers up to 5", id="above that of others"),
        pytest.param("team-b", "1", "up to 0 (the operator's --genius-priorities)", id="above none"),
        pytest.param("team-a", "2147483648", "is not a whole number of 32 bits", id="above int32"),
        pytest.param("team-a", "-2147483649", "is not a whole number of 32 bits", id="below int32"),
        pytest.param("team-a", "9" * 63, "is not a whole number of 32 bits", id="63 digits"),
        pytest.param("team-a", "1_0", "is not a whole number of 32 bits", id="an underscore"),
    ],
)
def test_a_value_beyond_the_limit_is_an_error(namespace: str, text: str, words: str) -> None:
    raw = pod(labels={names.GENIUS_PRIORITY: text}, metadata={"namespace": namespace})
    pending = pods.pending(raw, priorities=LIMITS)
    assert words in pending.error
    assert pending.weight == 0


def test_without_the_setting_nothing_above_0_is_allowed() -> None:
    limits = genius_priority.read_limits("")
    assert pods.pending(pod(labels={names.GENIUS_PRIORITY: "1"}), priorities=limits).error
    assert not pods.pending(pod(labels={names.GENIUS_PRIORITY: "0"}), priorities=limits).error


@pytest.mark.parametrize("text", ["team-a=9999999999", "team-a=1,team-a=2"])
def test_an_invalid_setting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"team-a"):
        genius_priority.read_limits(text)
