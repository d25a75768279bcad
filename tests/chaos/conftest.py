"""Each test has its own world, and the shipped fence applies to the account of its operator."""

import functools
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import Arena
from devcluster.control_plane.api import ApiError
from tests.integration.operator.world import World
from tests.programs import fence, released

ACCOUNT = "operator"


@pytest.fixture
def world(arena: Arena, tmp_path: Path) -> Iterator[World]:
    """Return an empty arena; the test starts its operators and agents."""
    own = World(arena=arena, folder=tmp_path)
    yield own
    own.close()
    sys.stdout.write(own.processes.tails())


@pytest.fixture
def account(arena: Arena, tmp_path: Path) -> Iterator[Path]:
    """Return the kubeconfig of an account whose Bindings the API server fences, as a release does if there is one."""
    kubeconfig = arena.service_account(ACCOUNT, "cluster-admin")
    names = {"namespace": arena.namespace, "lease": arena.lease_name, "service_account": ACCOUNT, "suffix": arena.id}
    documents = fence.fence(**names, file=released.fence(tmp_path / "fence.yaml") if released.FOLDER else fence.FENCE)
    arena.apply(documents)
    try:
        arena.wait(functools.partial(_fence_is_loaded, arena), what="the API server to load the fence")
        yield kubeconfig
    finally:
        for document in documents:
            arena.cluster.api.delete(arena.cluster.api.path_of(document))


def _fence_is_loaded(arena: Arena) -> bool:
    """Return whether the API server refuses a Binding of a term that never was; the probe pod is deleted."""
    probe = arena.pod(f"probe-{secrets.token_hex(4)}", scheduler_name="no-scheduler")
    name = arena.create([probe])[0]["metadata"]["name"]
    metadata = {
        "name": name,
        "labels": {"berth.dev/fenced-by": arena.lease_name},
        "annotations": {"berth.dev/epoch": "0"},
    }
    body = {"metadata": metadata, "target": {"kind": "Node", "name": "nowhere"}}
    try:
        arena.cluster.api.post(f"/api/v1/namespaces/{arena.namespace}/pods/{name}/binding", body)
    except ApiError as error:
        return "no params found" in str(
            error
        )  # The message must name the term: for up to 30 s it may instead report that the kind is unknown.
    finally:
        arena.delete("pods", name, grace_seconds=0)
    return False
