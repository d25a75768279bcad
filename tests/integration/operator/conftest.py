"""A world for each test: its own arena, or a module's arena that is cleared between tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import Arena, Cluster
from tests.integration.operator.world import World


@pytest.fixture
def world(arena: Arena, tmp_path: Path) -> Iterator[World]:
    """Return an empty arena; the test starts its operators and agents."""
    own = World(arena=arena, folder=tmp_path)
    yield own
    own.close()
    # pytest shows the output if the test failed.
    sys.stdout.write(own.processes.tails())


@pytest.fixture(scope="module")
def module_world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Start an arena with one operator and one agent that serve all tests of a module."""
    arena = Arena(cluster=cluster, folder=tmp_path_factory.mktemp("arena"))
    arena.open()
    own = World(arena=arena, folder=arena.folder)
    own.agent()
    own.operator()
    yield own
    own.close()
    arena.close()


@pytest.fixture
def shared(module_world: World) -> Iterator[World]:
    """Return the module's world, without nodes and pods."""
    yield module_world
    sys.stdout.write(module_world.processes.tails())
    module_world.clear()
