"""The shipped policies, in force for the arena of one module."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from devcluster import Arena, Cluster, waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.programs import policies

Enforce = Callable[..., None]
"""File of policies, probe, and expressions that replace those of variables -> nothing."""

ACTIVE_SECONDS = 30.0
"""Longest time in seconds until policies are in force: the API server reads them once a second, slower if busy."""


@pytest.fixture(scope="module")
def arena(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Open one arena for all tests of a module: a policy takes a second until it is in force."""
    own = Arena(cluster=cluster, folder=tmp_path_factory.mktemp("arena"))
    own.open()
    yield own
    own.close()


@pytest.fixture(scope="module")
def enforce_built(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., None]]:
    """Apply the policies about pods that kubectl makes of the base and components, without waiting for them."""
    applied: list[Manifest] = []

    def apply(*components: str) -> None:
        documents = policies.built(tmp_path_factory.mktemp("built"), *components)
        applied.extend(arena.apply(policies.confined(policies.about_pods(documents), arena)))

    yield apply
    for document in applied:
        arena.cluster.api.delete(arena.cluster.api.path_of(document))


@pytest.fixture(scope="module")
def enforce(arena: Arena) -> Iterator[Enforce]:
    """Apply a file of policies, and wait until a probe shows that they are in force."""
    applied: list[Manifest] = []

    def apply(file: str, probe: Callable[[], bool], **variables: str) -> None:
        applied.extend(arena.apply(policies.policies(file, arena, variables)))

        def is_in_force() -> bool:
            with contextlib.suppress(ApiError):  # what refuses may be in force before what changes
                return probe()
            return False

        waiting.until(is_in_force, deadline=ACTIVE_SECONDS, what=f"{file} to be in force")

    yield apply
    for document in applied:
        arena.cluster.api.delete(arena.cluster.api.path_of(document))
