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


def test_the_present_is_in_utc() -> None:
    assert times.now().tzinfo is UTC
