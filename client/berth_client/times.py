"""Times in RFC 3339, as Kubernetes writes them: `Time` in whole seconds, `MicroTime` with microseconds."""

from datetime import UTC, datetime


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
