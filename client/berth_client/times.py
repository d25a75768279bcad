"""Times in RFC 3339, as Kubernetes writes them: `Time` in whole seconds, `MicroTime` with microseconds."""

from datetime import UTC, datetime
from typing import TypeVar

Default = TypeVar("Default")


def now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


def time(moment: datetime) -> str:
    """Return a moment in UTC as a `metav1.Time`, such as `2026-01-02T03:04:05Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(moment: datetime) -> str:
    """Return a moment in UTC as a `metav1.MicroTime`, such as `2026-01-02T03:04:05.678901Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse(text: str) -> datetime:
    """Parse a `Time` or a `MicroTime`.

    Raises:
        ValueError: the text is not a time.
    """
    return datetime.fromisoformat(text)


def seconds(text: str, default: Default) -> int | Default:
    """Return a `Time` or a `MicroTime` in seconds since 1970; the default if it is no time of the years 1 to 9999.

    Use it for a time in a status or of a deletion. The API server accepts and computes times of other years, which
    neither Python nor messages can hold.
    """
    try:
        # In UTC, because an offset may lead out of these years.
        return int(parse(text).astimezone(UTC).timestamp())
    except (ValueError, OverflowError):
        return default
