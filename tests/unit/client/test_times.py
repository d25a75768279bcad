"""Times as Kubernetes writes them."""

from datetime import UTC, datetime

import pytest

from berth_client import times

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def test_times_have_whole_seconds_and_micro_times_six_digits() -> None:
    assert times.time(MOMENT) == "2026-01-02T03:04:05Z"
    assert times.micro_time(MOMENT) == "2026-01-02T03:04:05.000006Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", MOMENT.replace(microsecond=0)),
        ("2026-01-02T03:04:05.000006Z", MOMENT),
        ("2026-01-02T05:04:05.000006+02:00", MOMENT),
    ],
)
def test_both_are_read(text: str, expected: datetime) -> None:
    assert times.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1),
        ("2026-01-02T03:04:05.999999Z", 1_767_323_045),
        ("2026-01-02T05:04:05+02:00", 1_767_323_045),
        ("0001-01-01T00:00:00Z", -62_135_596_800),
        ("9999-12-31T23:59:59Z", 253_402_300_799),
        pytest.param("0000-01-01T00:00:00Z", None, id="before the years of Python"),
        pytest.param("0001-01-01T00:00:00+01:00", None, id="before them in UTC"),
        pytest.param("10000-01-01T00:00:00Z", None, id="after the years of Python"),
        pytest.param("9999-12-31T23:59:59-01:00", None, id="after them in UTC"),
        pytest.param("292277026596-12-04T15:30:07Z", None, id="the latest time of Go"),
        pytest.param("", None, id="empty"),
        pytest.param("yesterday", None, id="no time"),
    ],
)
def test_a_time_in_seconds_or_a_default(text: str, seconds: int | None) -> None:
    assert times.seconds(text, None) == seconds
    assert times.seconds(text, 7) == (7 if seconds is None else seconds)


def test_the_present_is_in_utc() -> None:
    assert times.now().tzinfo is UTC
