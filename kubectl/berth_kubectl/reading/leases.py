"""Leases and LeaderLeases: whether their holders still renew them."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from berth_kubectl.printing.amounts import age
from berth_kubectl.reading.objects import Object, time_of

WRITTEN_AGO: Final = 5.0
"""Seconds by which a renewal may be late without a finding."""


def written(lease: Object) -> datetime | None:
    """Return when a Lease or LeaderLease was last written, by the API server's clock; else by its holder's."""
    fields = lease["metadata"].get("managedFields") or ()
    times = [moment for entry in fields if (moment := time_of(str(entry.get("time") or "")))]
    return max(times, default=time_of(str(lease["spec"].get("renewTime") or "")))


def expired_for(lease: Object, now: datetime) -> float | None:
    """Return for how many seconds a Lease or LeaderLease has not been renewed; None if it is valid."""
    renewed = written(lease)
    if renewed is None:
        return 0.0
    silent = (now - renewed).total_seconds()
    return silent if silent > float(lease["spec"].get("leaseDurationSeconds") or 0) + WRITTEN_AGO else None


def without_leader(leases: Iterable[Object], now: datetime, old: str) -> str:
    """Return since when no operator leads, and what is as old; empty if one leads, or none ever did."""
    silent = [expired_for(lease, now) for lease in leases]
    if not silent or None in silent:
        return ""
    since = age(min(seconds for seconds in silent if seconds is not None))
    return f"no operator has led for {since}: {old}"
