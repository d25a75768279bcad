"""The steps of the demo. It exits with status 0 only if all of them succeed."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from demo import show
from demo.audit import audit
from demo.audit.view import Grant, Pod, grants
from demo.world import EXAMPLES, NODES, NVML_AGENT, NVML_NODE, DemoError, World
from devcluster import Cluster, DevclusterError, programs
from devcluster.api import ApiError

Manifest = dict[str, Any]

FITTING: Final = ("whole", "two-cards", "half", "by-memory", "by-model", "no-gpu")
"""The files of `manifests/examples` whose pods must be bound."""
INJECTED: Final = "half"
"""One of them that must be injected."""
WAITING: Final = "waits"
"""The pod that must wait."""
PODS: Final = "/api/v1/namespaces/default/pods"
DEVICES: Final = "/apis/berth.dev/v1alpha1/devices"


def main() -> int:
    """Run the steps and return the exit status."""
    # SIGTERM ends it as Ctrl-C does: through the context manager that stops the cluster.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _running_cluster() as cluster:
            summary = _story(World(cluster=cluster))
    except (DemoError, DevclusterError, ApiError, OSError, subprocess.SubprocessError) as error:
        show.failure(str(error))
        return 1
    except KeyboardInterrupt:
        show.failure("interrupted")
        return 130
    print(summary)  # noqa: T201 - the last line, exactly so
    return 0


@contextlib.contextmanager
def _running_cluster() -> Iterator[Cluster]:
    # Before the first step, because a build shows its own steps.
    programs.ensure()
    cluster = Cluster()
    try:
        with show.step("a control plane: etcd, API server, controllers, and kwok for the nodes"):
            cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _story(world: World) -> str:
    with show.step(f"{len(NODES)} nodes; Berth's kinds, rights and policies"):
        world.install()
    with show.step(f"the operator; an agent on the C library of {NVML_NODE}; an agent that plays the other nodes"):
        world.start_programs()
        world.until(lambda: _readiness(world) == dict.fromkeys(NODES, "True"), what="every Device to be Ready")
    with show.step("the pods of manifests/examples"):
        expected = _apply_examples(world)
        world.until(lambda: _bound(world) == expected, what=f"exactly these pods to be bound: {sorted(expected)}")
        reason = world.until(lambda: _why_it_waits(world), what=f"the reason why {WAITING} waits")
        world.until(lambda: _shown_use(world) == _held(world), what="the Devices to show what is held")
    show.command("kubectl get devices", world.cluster.kubectl("get", "devices"))
    show.pods(world.list(PODS))
    show.reason(WAITING, reason)
    _check(world, expected)
    _lose_an_agent(world)
    return _check(world, expected, quiet=True)


def _apply_examples(world: World) -> set[str]:
    """Apply the pods, and return the names of those that fit."""
    # A new policy takes a second.
    world.until(lambda: world.injects(EXAMPLES / f"{INJECTED}.yaml"), what="the policy that injects to be in force")
    world.apply(EXAMPLES / f"{WAITING}.yaml")
    pods = [pod for name in FITTING for pod in world.apply(EXAMPLES / f"{name}.yaml")]
    return {pod["metadata"]["name"] for pod in pods}


def _lose_an_agent(world: World) -> None:
    """Kill the agent of one node: its devices must not be allocated until it is back."""
    show.say(f"\nThe agent of {NVML_NODE} is killed ...")
    world.kill(NVML_AGENT)
    started = time.monotonic()
    world.until(lambda: _readiness(world)[NVML_NODE] == "Unknown", what=f"the Device of {NVML_NODE} to be stale")
    show.command("kubectl get devices", world.cluster.kubectl("get", "devices"))
    show.say(f"\n... noticed after {time.monotonic() - started:.1f} s, and is started again ...")
    started = time.monotonic()
    world.restart(NVML_AGENT)
    world.until(lambda: _readiness(world)[NVML_NODE] == "True", what=f"the Device of {NVML_NODE} to be back")
    show.command(f"kubectl get device {NVML_NODE}", world.cluster.kubectl("get", "device", NVML_NODE))
    show.say(f"\n... back after {time.monotonic() - started:.1f} s")


def _check(world: World, expected: set[str], *, quiet: bool = False) -> str:
    """Audit everything; return the summary.

    Raises:
        DemoError: there is a fault, or not exactly the expected pods are bound.
    """
    pods, devices = world.list("/api/v1/pods"), world.list(DEVICES)
    findings = audit(pods=pods, nodes=world.list("/api/v1/nodes"), devices=devices)
    if findings or not quiet:
        show.audit(findings, pods=len(pods), devices=len(devices))
    if findings:
        raise DemoError(f"the audit found {len(findings)} faults\n{world.logs()}")
    if (bound := _bound(world)) != expected:
        raise DemoError(f"bound are {sorted(bound)}, but should be {sorted(expected)}\n{world.logs()}")
    cards = {(pod.node, grant.type, grant.minor) for pod in map(Pod.read, pods) for grant in _grants(pod)}
    return f"demo: {len(bound)} pods bound, {len(cards)} devices allocated, {len(findings)} conflicts"


# --- what the API server says -------------------------------------------------------------------------------


def _bound(world: World) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.list(PODS) if pod["spec"].get("nodeName")}


def _readiness(world: World) -> dict[str, str]:
    """Return the status of each Device's Ready condition."""
    return {device["metadata"]["name"]: _condition(device, "Ready").get("status", "") for device in world.list(DEVICES)}


def _why_it_waits(world: World) -> str:
    pod = world.cluster.api.get(f"{PODS}/{WAITING}")
    scheduled = _condition(pod, "PodScheduled")
    return str(scheduled.get("message", "")) if scheduled.get("reason") == "Unschedulable" else ""


def _condition(manifest: Manifest, kind: str) -> Manifest:
    conditions: list[Manifest] = manifest.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def _shown_use(world: World) -> dict[str, float]:
    """Return how many GPUs each Device shows as allocated."""
    return {device["metadata"]["name"]: float(device["status"].get("allocated", 0)) for device in world.list(DEVICES)}


def _held(world: World) -> dict[str, float]:
    """Return how many GPUs the pods of each node hold by their annotations."""
    hundredths = dict.fromkeys(NODES, 0)
    for pod in map(Pod.read, world.list(PODS)):
        for grant in _grants(pod):
            hundredths[pod.node] += grant.amounts.get("gpu-memory-ratio", 0)
    return {node: amount / 100 for node, amount in hundredths.items()}


def _grants(pod: Pod) -> list[Grant]:
    return grants(pod.annotations.get(show.ALLOCATION, "{}"))


if __name__ == "__main__":
    sys.exit(main())
