"""A running dashboard, shared by tests of a module that do not exhaust it."""

from collections.abc import Iterator

import pytest

from tests.programs.dashboard import Desk, running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with running(tmp_path_factory.mktemp("desk"), lambda: {"kind": "Diagnosis", "findings": []}, seconds=600) as own:
        yield own


@pytest.fixture
def desk(shared: Desk) -> Iterator[Desk]:
    """Yield the dashboard with an upstream that was asked nothing."""
    shared.upstream.requests.clear()
    shared.upstream.scripts.clear()
    shared.client.host = ""
    yield shared
    shared.client.close()
    shared.stranger.close()
