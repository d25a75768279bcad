"""Manifests of other systems on the real API server: warnings at apply, changes by admission, and what pods get."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berth_api import names, resources, words
from berth_operator.apis.webhook.mutations import Mutations
from berth_operator.state.objects import pods
from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests import manifests_of_others as manifests
from tests.integration.operator import world as worlds
from tests.integration.operator.world import World
from tests.integration.policies.conftest import ACTIVE_SECONDS
from tests.manifests_of_others import checks
from tests.programs import policies

DRY = {"dryRun": "All"}
MANIFESTS = manifests.FOLDER
HAMI = MANIFESTS / "hami"
NODES = 9


@pytest.fixture(scope="module")
def world(arena: Arena) -> Iterator[World]:
    """Start an operator and nodes, under the policies as shipped."""
    shipped = [each for file in ("injection.yaml", "words.yaml") for each in policies.policies(file, arena)]
    applied = arena.apply(shipped)
    world = World(arena=arena, folder=arena.folder)
    world.agent()
    world.operator(require_injection=None)
    world.nodes(NODES, gpus=8, rdma=2, capacity={"nvidia.com/gpu": "8"}, labels={"nvidia.com/gpu.product": "A100"})
    probe = own(arena, HAMI / "memory.yaml")
    waiting.until(lambda: in_force(arena, probe), deadline=ACTIVE_SECONDS, what="the policies to be in force")
    yield world
    world.close()
    for document in applied:
        arena.cluster.api.delete(arena.cluster.api.path_of(document))


def in_force(arena: Arena, probe: Manifest) -> bool:
    try:
        made = admitted(arena, probe)
    except ApiError:
        return False
    return (
        "env" in made["spec"]["containers"][0]
        and names.ORIGINAL_RESOURCES in made["metadata"].get("annotations", {})
        and said(arena, probe) != []
    )


def own(arena: Arena, file: Path, **fields: Any) -> Manifest:
    """Return the pod of a manifest for the arena's scheduler."""
    pod = manifests.pod(file)
    metadata = {key: value for key, value in pod["metadata"].items() if key in ("labels", "annotations")}
    name = manifests.name(file).replace("/", "-")
    spec = {**pod["spec"], "schedulerName": arena.scheduler_name, "nodeSelector": arena.labels, **fields}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "name": name, "namespace": arena.namespace},
        "spec": spec,
    }


def admitted(arena: Arena, pod: Manifest) -> Manifest:
    return arena.cluster.api.request("POST", folder(arena, pod), body=another(pod), query=DRY)


def said(arena: Arena, manifest: Manifest) -> list[str]:
    """Return what the policy says at apply."""
    answers = arena.cluster.api.warnings("POST", folder(arena, manifest), body=another(manifest), query=DRY)
    return [each.partition(" with binding ")[2].partition(": ")[2] for each in answers]


def folder(arena: Arena, manifest: Manifest) -> str:
    return arena.cluster.api.path_of(manifest).rpartition("/")[0]


def another(manifest: Manifest) -> Manifest:
    """Return an object with a name that none has."""
    return {**manifest, "metadata": {**manifest["metadata"], "name": "another"}}


# --- what pods get ----------------------------------------------------------------------------------------------

WAITING = {
    "armada/gang": "1 of 2|of at least 2|2 members|minimum",
    "godel/group": "PodGroup .*/train does not exist",
    "hami/mode-hami-core": "container main is not limited to its share",
    "hami/use-uuid": "match the pod's device selector berth.dev/uuid=GPU-1afede84-4e70-2174-49af-f07ebb94d1ae",
    "kai/group": "PodGroup .*/train does not exist",
    "kai/group-object": "PodGroup .*/train does not exist",
    "koordinator/isolation": "container main is not limited to its share",
    "nvidia/mig": "have no nvidia.com/mig-1g.10gb",
    "nvidia/time-slice": "have no nvidia.com/gpu.shared",
    "nvidia/two-profiles": "have no nvidia.com/mig-1g.10gb",
    "others/amd": "have no GPUs of AMD",
    "volcano/group": "PodGroup .*/train does not exist",
    "volcano/tasks": "PodGroup .*/train does not exist",
    "volcano/mode-hami-core": "container main is not limited to its share",
    "yunikorn/gang": "1 of 2|of at least 2|2 members|minimum",
    "yunikorn/spark-executor": "1 of 2|of at least 2|2 members|minimum",
    "yunikorn/two-task-groups": "1 of 3|of at least 3|3 members|minimum",
    "volcano/use-uuid": "match the pod's device selector berth.dev/uuid=GPU-1afede84-4e70-2174-49af-f07ebb94d1ae",
}
"""Manifests that ask for what these nodes do not have -> why they wait."""
FIRST, LAST = MANIFESTS / "koordinator/gang.yaml", MANIFESTS / "koordinator/topology-preferred.yaml"
"""The two members of a group."""


def test_each_pod_gets_what_its_source_means_or_the_answer(world: World) -> None:
    files = manifests.files()
    world.arena.create([own(world.arena, file) for file in files if file != LAST])
    world.waits("koordinator-gang", "1 of 2|of at least 2|2 members|minimum")
    world.arena.create([own(world.arena, LAST)])
    for file in files:
        pod, answer = manifests.name(file).replace("/", "-"), manifests.answer(file)
        if "refused" in answer:
            assert world.waits(pod, "invalid request") == f"invalid request: {answer['refused']}"
        elif reason := WAITING.get(manifests.name(file)):
            world.waits(pod, reason)
        else:
            assert_gets(world.bound(pod), answer)
    [event] = world.wait(lambda: world.events("hami-two-cards", "WordsRead"), what="the Event")
    assert event["message"] == "nvidia.com/gpumem is read as 2 cards of 3000 MiB each"


def assert_gets(pod: Manifest, answer: dict[str, Any]) -> None:
    """Check number and amounts of the cards of a bound pod, and which of them each container sees."""
    annotations, identities = pod["metadata"]["annotations"], checks.held_cards(pod, answer)
    for container, indexes in answer["sees"].items():
        if (visible := annotations.get(f"{container}.{worlds.VISIBLE}")) is not None:
            assert visible.split(",") == [identities[index] for index in indexes]
        else:  # kubelet gives the plug-in's
            assert "nvidia.com/gpu" in answer["gets"]


# --- what is said at apply --------------------------------------------------------------------------------------

LATER = "; its condition PodScheduled or the Event WordsRead says as what"
TOO_MUCH = {
    *("hami/unequal-cards", "hami/unequal-containers"),
    *(name for file in manifests.files() if (name := manifests.name(file)).startswith("yunikorn/")),
}
"""What the policy leaves to the operator."""
USED = [file for file in manifests.files() if words.is_used(*manifests.parts(file))]


def test_at_apply_it_is_said_what_is_read_and_what_is_not_had(world: World) -> None:
    for file in USED:
        answer, shown = manifests.answer(file), said(world.arena, own(world.arena, file))
        if manifests.name(file) in TOO_MUCH:
            assert shown[0].endswith(LATER), file
        elif "refused" in answer:
            assert shown[0] == f"invalid request: {answer['refused']}", file
        else:
            assert "; ".join(shown) == read(manifests.pod(file)), file


def read(pod: Manifest) -> str:
    """Return what the operator says it has read of a pod, with its words about gangs."""
    metadata = pod["metadata"]
    reading = words.read(pod["spec"], metadata.get("annotations", {}), metadata.get("labels", {}))
    devices = pods.request_of(pod).devices
    return words.plain.reading(reading.words, reading.said, reading.notes, devices)


ONE_CARD = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10000"}}


@pytest.mark.parametrize(
    ("initial", "main", "cards"),
    [(["", ""], 1, 1), (["", "Always", ""], 1, 2), (["Always", ""], 0, 2), (["", "Always"], 0, 1), ([""] * 50, 49, 49)],
)
def test_what_runs_one_after_the_other_is_not_added_up(world: World, initial: list[str], main: int, cards: int) -> None:
    pod = own(world.arena, HAMI / "memory.yaml")
    [container] = pod["spec"]["containers"]
    before = [
        {
            **container,
            "name": f"before-{number}",
            "resources": ONE_CARD,
            **({"restartPolicy": policy} if policy else {}),
        }
        for number, policy in enumerate(initial)
    ]
    later = [{**container, "name": f"main-{number}", "resources": ONE_CARD} for number in range(main)]
    without = {**container, "name": "without", "resources": {}}
    pod["spec"] |= {"initContainers": before, "containers": [*later, without]}
    whose = f"{cards} card{'s' if cards > 1 else ''} of 10000 MiB{' each' if cards > 1 else ''}"
    assert said(world.arena, pod) == [f"nvidia.com/gpu, nvidia.com/gpumem are read as {whose}"]
    assert read({**pod, "spec": resources.from_limits(pod["spec"])}) == said(world.arena, pod)[0]


@pytest.mark.parametrize(
    "annotations",
    [
        {"nvidia.com/nouse-gputype": "NVIDIA-A100, T4[x]?*,", "nvidia.com/use-gpuuuid": "GPU-1,GPU-2"},
        {"nvidia.com/use-gputype": "A100,H100", "nvidia.com/numa-bind": "true"},
        {"nvidia.com/numa-bind": "false", "hami.io/gpu-scheduler-policy": "spread"},
    ],
)
def test_each_word_is_said_by_what_it_does(world: World, annotations: dict[str, str]) -> None:
    pod = own(world.arena, HAMI / "whole.yaml")
    pod["metadata"]["annotations"] = annotations
    assert "; ".join(said(world.arena, pod)) == read(pod)


def test_a_long_list_is_left_to_the_event_and_an_empty_one_is_refused(world: World) -> None:
    pod = own(world.arena, HAMI / "whole.yaml")
    pod["metadata"]["annotations"] = {"nvidia.com/use-gputype": "A100," * 100}
    assert said(world.arena, pod) == [
        "annotation nvidia.com/use-gputype is read for each pod; the Event WordsRead says as what"
    ]
    pod["metadata"]["annotations"] = {"nvidia.com/use-gputype": " ,"}
    assert said(world.arena, pod) == [
        f"invalid request: {pods.pending({**pod, 'metadata': {**pod['metadata'], 'uid': ''}}).error}"
    ]


def test_what_has_no_word_passes_in_silence(world: World) -> None:
    for file in set(manifests.files()) - set(USED):
        assert said(world.arena, own(world.arena, file)) == []


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_templates_are_answered_in_the_same_words(world: World, kind: str) -> None:
    for file in (HAMI / "two-cards.yaml", HAMI / "mode-mig.yaml", MANIFESTS / "kai/fraction-of-two.yaml"):
        pod = own(world.arena, file)
        assert said(world.arena, of_kind(kind, pod)) == said(world.arena, pod)


def of_kind(kind: str, pod: Manifest) -> Manifest:
    """Return an object with the template of a pod."""
    labels = {"app": "a", **pod["metadata"].get("labels", {})}
    metadata = {"labels": labels, "annotations": pod["metadata"].get("annotations", {})}
    spec: Manifest = {"template": {"metadata": metadata, "spec": dict(pod["spec"])}}
    if kind in ("Deployment", "StatefulSet", "DaemonSet"):
        spec["selector"] = {"matchLabels": {"app": "a"}}
    else:
        spec["template"]["spec"]["restartPolicy"] = "Never"
    if kind == "CronJob":
        spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
    head = {"name": "a", "namespace": pod["metadata"]["namespace"]}
    return {"apiVersion": "apps/v1" if "selector" in spec else "batch/v1", "kind": kind, "metadata": head, "spec": spec}


# --- whose pod it is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "route"),
    [
        (HAMI / "two-cards.yaml", "words"),
        (MANIFESTS / "kai/fraction.yaml", "words"),
        (HAMI / "two-cards.yaml", "devices"),
    ],
)
def test_a_pod_that_names_no_scheduler_is_taken_only_where_the_namespace_opts_in(
    world: World, file: Path, route: str
) -> None:
    arena = world.arena
    unnamed, others = (own(arena, file, schedulerName=name) for name in ("default-scheduler", "hami-scheduler"))
    template = of_kind("Deployment", unnamed)
    for pod in (unnamed, others):
        assert untouched(admitted(arena, pod), pod)
    [unread] = said(arena, unnamed)
    written = "nvidia.com/gpumem" if file.parent == HAMI else "annotation gpu-fraction"
    assert unread == (
        f'spec.schedulerName: "default-scheduler" (also if it is not set) does not read {written}; write '
        f"spec.schedulerName: {arena.scheduler_name}"
    )
    assert said(arena, others) == said(arena, template) == []

    def is_taken() -> bool | None:
        # Until the API server knows of the label, one policy may read it, and the next one refuse what that one did.
        made = arena.admitted_or_none(another(unnamed))
        return None if made is None else not untouched(made, unnamed)

    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {"berth.dev/routing": route}}})
    try:
        waiting.until(is_taken, what="the namespace to have opted in")
        made, named = admitted(arena, unnamed)["spec"], admitted(arena, own(arena, file))["spec"]
        assert made["schedulerName"] == arena.scheduler_name
        for field in ("env", "resources"):
            assert [each.get(field) for each in made["containers"]] == [each.get(field) for each in named["containers"]]
        assert said(arena, template) == said(arena, own(arena, file)) != []
        assert untouched(admitted(arena, others), others)
    finally:
        arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {"berth.dev/routing": None}}})
        waiting.until(lambda: is_taken() is False, what="the namespace to have opted out")


def untouched(made: Manifest, pod: Manifest) -> bool:
    """Return whether admission has left scheduler, resources and environment as they were."""
    [container] = made["spec"]["containers"]
    return (
        made["spec"]["schedulerName"] == pod["spec"]["schedulerName"]
        and "env" not in container
        and names.ORIGINAL_RESOURCES not in made["metadata"].get("annotations", {})
    )


def test_what_a_plugin_would_allocate_is_renamed_and_the_original_kept(world: World) -> None:
    made = admitted(world.arena, own(world.arena, HAMI / "two-cards.yaml"))
    [container] = made["spec"]["containers"]
    amounts = {"kubernetes.io/gpu.shared": "2", "nvidia.com/gpumem": "3k"}
    assert container["resources"] == {"limits": amounts, "requests": amounts}
    assert json.loads(made["metadata"]["annotations"][names.ORIGINAL_RESOURCES]) == {"main": {"nvidia.com/gpu": "2"}}
    again = admitted(world.arena, {**made, "metadata": {**made["metadata"], "uid": None, "creationTimestamp": None}})
    assert again["spec"]["containers"] == made["spec"]["containers"]


@pytest.mark.parametrize("file", USED, ids=manifests.name)
def test_webhook_and_policies_make_the_same_of_a_pod(world: World, file: Path) -> None:
    pod = own(world.arena, file)
    by_policy = admitted(world.arena, pod)
    by_webhook = Mutations().made_of(resources_set(pod), None)
    for kind in ("initContainers", "containers"):
        pairs = zip(by_policy["spec"].get(kind, ()), by_webhook["spec"].get(kind, ()), strict=True)
        for made, expected in pairs:
            assert made.get("env") == expected.get("env")
            assert (
                made["resources"].get("requests", {}).keys()
                == (expected.get("resources") or {}).get("requests", {}).keys()
            )
    kept = names.ORIGINAL_RESOURCES
    assert by_policy["metadata"].get("annotations", {}).get(kept) == by_webhook["metadata"].get("annotations", {}).get(
        kept
    )


def resources_set(pod: Manifest) -> Manifest:
    """Return a pod with the requests that the API server sets."""
    return {**pod, "spec": resources.from_limits(pod["spec"])}
