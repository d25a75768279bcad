"""One arena for all attacks of a module, with the shipped accounts, roles and policies in force in it."""

from collections.abc import Iterator

import pytest

from devcluster import Arena, Cluster
from tests.attacks.accounts import Accounts


@pytest.fixture(scope="module")
def arena(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Open one arena for all tests of a module: a policy takes a second until it is in force."""
    own = Arena(cluster=cluster, folder=tmp_path_factory.mktemp("arena"))
    own.open()
    yield own
    own.close()


@pytest.fixture(scope="module")
def accounts(arena: Arena) -> Iterator[Accounts]:
    """Install the shipped accounts with their rights, and the policies that limit them."""
    installed = Accounts(arena)
    installed.open()
    yield installed
    installed.close()
