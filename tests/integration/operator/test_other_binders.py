"""Pods of Berth that another program binds: kube-scheduler with a profile of the same name, and any client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berth_api.admission import injection
from devcluster import waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.operator.world import World, condition, free_ports
from tests.objects.builders import GPU
from tests.programs import kube_scheduler

COMPONENTS: Final = Path(__file__).parents[3] / "manifests/components"
CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
HALF: Final = {GPU: "50"}


def half(world: World, name: str, **fields: Any) -> Manifest:
    """Return a pod with half a card, as admission would have injected it."""
    selector = world.arena.labels
    return injection.injected(world.arena.pod(name, requests=HALF, limits=HALF, nodeSelector=selector, **fields))


def test_a_pod_that_kube_scheduler_binds_is_reported_until_it_is_gone(world: World, tmp_path: Path) -> None:
    operator = world.operator()
    world.agent()
    [node] = world.nodes()
    world.wait_sum(node, GPU, "800")
    # While no operator decides, as kube-scheduler may be quicker.
    operator.pause()
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(world.arena.cluster.kubeconfig)},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": world.arena.scheduler_name}],
    }
    other = kube_scheduler.start(config, tmp_path, "kube-scheduler")
    try:
        world.arena.create([half(world, "blind")])
        world.bound("blind")
    finally:
        other.kill()
        operator.resume()
    message = world.wait_condition(node, "BoundByBerth", "False")
    assert message.endswith(f"their containers see no GPU: {world.arena.namespace}/blind")
    world.wait(lambda: world.events("blind", "AllocationMissing"), what="the Event")
    [event] = world.events("blind", "AllocationMissing")
    assert event["message"].startswith(f"Another program bound the pod to {node}")
    # Nothing is blocked, and the pods of Berth's own operator are no fault.
    world.arena.create([half(world, "own")])
    world.bound("own")
    assert condition(world.shown(node), "Accounted")["status"] == "True"
    assert world.wait_condition(node, "BoundByBerth", "False") == message
    world.remove("blind")
    world.wait(lambda: not condition(world.shown(node), "BoundByBerth"), what="the condition to go with the pod")


@pytest.fixture
def _webhook(world: World) -> Iterator[None]:
    """Serve the webhook with the shipped configuration of Bindings, for the arena's namespace only."""
    api, name, [port] = world.api, f"berth-bindings-{world.arena.id}", free_ports(1)
    component = yaml.safe_load((COMPONENTS / "validation-bindings/kustomization.yaml").read_text())
    [added] = yaml.safe_load(component["patches"][0]["patch"])
    hook = added["value"]
    hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{hook['clientConfig']['service']['path']}"}
    hook["namespaceSelector"]["matchLabels"] = {"kubernetes.io/metadata.name": world.arena.namespace}
    hook["timeoutSeconds"] = 10  # this machine may be busy
    shipped = next(yaml.safe_load_all((COMPONENTS / "validation/webhook.yaml").read_text()))
    api.post(CONFIGURATIONS, {**shipped, "metadata": {"name": name}, "webhooks": [hook]})
    world.processes.webhook(
        host="127.0.0.1",
        address="127.0.0.1",
        port=port,
        period=0.2,
        namespace=world.arena.namespace,
        configuration=f"none-{world.arena.id}",
        validating_configuration=name,
        scheduler_names=world.arena.scheduler_name,
        validate_bindings=True,
    )
    yield
    api.delete(f"{CONFIGURATIONS}/{name}")
    world.arena.delete("secrets", "berth-webhook")


def refusal(world: World, pod: str, node: str) -> str:
    """Return why the API server refuses a client's Binding, which is a dry run; empty if it does not."""
    path = f"/api/v1/namespaces/{world.arena.namespace}/pods/{pod}/binding"
    binding = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}
    try:
        world.api.request("POST", path, body=binding, query={"dryRun": "All"})
    except ApiError as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("_webhook")
def test_a_binding_of_another_scheduler_is_refused_where_administrators_want_it(world: World) -> None:
    operator = world.operator()
    world.agent()
    [node] = world.nodes()
    operator.pause()
    world.arena.create([half(world, "waits"), world.arena.pod("plain", requests={"cpu": "1m"})])
    waiting.until(lambda: refusal(world, "waits", node), what="the webhook to refuse")
    assert "only Berth may bind this pod" in refusal(world, "waits", node)
    assert refusal(world, "plain", node) == ""
    operator.resume()
    world.bound("waits")
