"""Fixtures for tests of the operator's scheduling."""

import pytest

from tests.integration.operator.conftest import module_world, shared, world
from tests.programs import versions

__all__ = ["module_world", "shared", "world"]


@pytest.fixture(scope="module", params=[versions.OWN, "1.37"])
def version(request: pytest.FixtureRequest) -> str:
    """Return the version of API server and kube-scheduler; others than our own are skipped unless requested."""
    wanted: str = request.param
    versions.skip_unless(wanted, versions.REQUESTED | {versions.OWN})
    return wanted
