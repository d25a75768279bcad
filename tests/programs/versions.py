"""Versions of Kubernetes with which tests start their own clusters. TEST_KUBERNETES requests them."""

import os
from typing import Final

import pytest

OWN: Final = "1.36"
"""The version of the development cluster."""
REQUESTED: Final = frozenset(os.environ.get("TEST_KUBERNETES", "").split())


def skip_unless(version: str, versions: frozenset[str] = REQUESTED) -> None:
    """Skip the test unless its version is one of those."""
    if version not in versions:
        pytest.skip(f"TEST_KUBERNETES does not request {version} (make chart-e2e, make test-versions)")


def replaced(version: str, *programs: str) -> dict[str, str]:
    """Return what replaces these programs of a cluster by those of a version, as `Cluster.replaced`."""
    return {} if version == OWN else {name: f"{name}-{version}" for name in programs}


def minor(version: str) -> int:
    """Return the minor version."""
    return int(version.partition(".")[2])
