"""With the shipped policies, the operator places only pods that the policies have injected."""

from collections.abc import Callable
from pathlib import Path

from devcluster import Arena
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.objects.builders import GPU

HALF = {GPU: "50"}
SPLIT = [{"name": name, "image": "none", "resources": {"limits": {GPU: "25"}}} for name in ("a", "b")]


def test_pods_are_placed_once_they_are_injected(
    arena: Arena, enforce: Callable[[str, Callable[[], bool]], None], tmp_path: Path
) -> None:
    world = World(arena=arena, folder=tmp_path)
    try:
        world.agent()
        # Without the flag of other tests that makes injection optional.
        world.operator(require_injection=None, kubeconfig=arena.service_account("berth-operator", "cluster-admin"))
        world.nodes(1, gpus=1)
        world.pod("early", HALF)
        message = world.waits("early", "NotInjected")
        assert "of container main is not Berth's (apply manifests/base/injection.yaml or the webhook" in message

        probe = arena.pod(requests=HALF, limits=HALF)
        forged = arena.pod(annotations={words.ALLOCATED: "{}"})
        enforce("injection.yaml", lambda: "env" in arena.admitted(probe)["spec"]["containers"][0])
        enforce("protection.yaml", lambda: arena.refusal(forged) != "")
        arena.create([arena.pod("late", containers=SPLIT)])
        annotations = world.bound("late")["metadata"]["annotations"]
        [card] = words.allocation(world.bound("late"))["gpu"]
        assert {annotations[f"{name}.{words.VISIBLE}"] for name in ("a", "b")} == {card["id"]}
        assert "nodeName" not in arena.get("pods", "early")["spec"]
    finally:
        world.close()
