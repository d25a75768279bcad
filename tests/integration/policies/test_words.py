"""Manifests of other systems on the real API server: what is read is said at apply, and what admission makes of pods."""

import pytest

from berth_operator.state.objects import pods
from devcluster import Arena, waiting
from devcluster.control_plane.api import Manifest
from tests import manifests_of_others as manifests
from tests import policies
from tests.integration.policies.conftest import ACTIVE_SECONDS

DRY = {"dryRun": "All"}


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena):
    shipped = policies.policies("injection.yaml", arena) + policies.policies("words.yaml", arena)
    applied = arena.apply(shipped)
    probe = own(arena, manifests.pod(manifests.FOLDER / "hami/memory.yaml"))
    waiting.until(lambda: "env" in str(admitted(arena, probe)["spec"]) and warned(arena, probe), deadline=ACTIVE_SECONDS, what="policies")
    yield
    for document in applied:
        arena.cluster.api.delete(arena.cluster.api.path_of(document))


def own(arena: Arena, pod: Manifest) -> Manifest:
    metadata = {**pod["metadata"], "namespace": arena.namespace}
    metadata.pop("uid", None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**pod["spec"], "schedulerName": arena.scheduler_name}}


def admitted(arena, pod):
    return arena.cluster.api.request("POST", f"/api/v1/namespaces/{arena.namespace}/pods", body=pod, query=DRY)


def warned(arena, pod):
    return arena.cluster.api.warnings("POST", f"/api/v1/namespaces/{arena.namespace}/pods", body=pod, query=DRY)


def test_all(arena: Arena) -> None:
    for file in manifests.files():
        pod = own(arena, manifests.pod(file))
        made = admitted(arena, pod)
        answer = manifests.answer(file)
        pending = pods.pending(pods.transform(made))
        text = [w.partition("with binding ")[2].partition(": ")[2] for w in warned(arena, pod)]
        want = ["invalid request: " + answer["refused"]] if "refused" in answer else [answer["gets"]]
        ok = any(t.endswith(want[0]) for t in text)
        print("ok " if ok else "-- ", manifests.name(file), "" if ok else (want, text))
        for note in answer.get("notes", ()):
            if not any(note in t for t in text):
                print("   NOTE", note, text)
        if pending.error != answer.get("refused", "") or pending.request.uninjected:
            print("   !! ", pending.error, pending.request.uninjected)
    raise AssertionError
