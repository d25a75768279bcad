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
from demo.installation import EXAMPLES, NODES, NVML_AGENT, NVML_NODE, DemoError, Installation
from devcluster import Cluster, DevclusterError
from devcluster.additions import installation
from devcluster.building import programs
from devcluster.control_plane.api import ApiError

Manifest = dict[str, Any]

FITTING: Final = ("whole", "two-cards", "half", "by-memory", "by-model", "no-gpu", "unnamed-scheduler")
"""The files of `manifests/examples` whose pods must be bound."""
ROUTED: Final = "unnamed-scheduler"
"""One of them that names no scheduler, and must be routed to Berth and injected."""
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
            summary = _story(Installation(cluster=cluster))
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


def _story(berth: Installation) -> str:
    with show.step(f"{len(NODES)} nodes; Berth's kinds, rights and policies"):
        berth.install()
    with show.step(f"the operator; an agent on the C library of {NVML_NODE}; an agent that plays the other nodes"):
        berth.start_programs()
        berth.until(lambda: _readiness(berth) == dict.fromkeys(NODES, "True"), what="every Device to be Ready")
    with show.step("the pods of manifests/examples"):
        expected = _apply_examples(berth)
        berth.until(lambda: _bound(berth) == expected, what=f"exactly these pods to be bound: {sorted(expected)}")
        berth.until(lambda: _why_it_waits(berth), what=f"the reason why {WAITING} waits")
        berth.until(lambda: _shown_use(berth) == _held(berth), what="the Devices to show what is held")
    show.command("kubectl get devices", berth.cluster.kubectl("get", "devices"))
    show.pods(berth.list(PODS))
    berth.until(lambda: installation.answers(berth.cluster), what="the visibility API to answer")
    show.command(f"kubectl berth explain {WAITING}", berth.explain(WAITING))
    _check(berth, expected)
    _lose_an_agent(berth)
    return _check(berth, expected, quiet=True)


def _apply_examples(berth: Installation) -> set[str]:
    """Apply the pods, and return the names of those that fit."""
    # A new policy takes a second.
    berth.until(
        lambda: berth.routes(EXAMPLES / f"{ROUTED}.yaml"), what="the policies that route and inject to be in force"
    )
    berth.apply(EXAMPLES / f"{WAITING}.yaml")
    pods = [pod for name in FITTING for pod in berth.apply(EXAMPLES / f"{name}.yaml")]
    return {pod["metadata"]["name"] for pod in pods}


def _lose_an_agent(berth: Installation) -> None:
    """Kill the agent of one node: its devices must not be allocated until it is back."""
    show.say(f"\nThe agent of {NVML_NODE} is killed ...")
    berth.kill(NVML_AGENT)
    started = time.monotonic()
    berth.until(lambda: _readiness(berth)[NVML_NODE] == "Unknown", what=f"the Device of {NVML_NODE} to be stale")
    show.command("kubectl get devices", berth.cluster.kubectl("get", "devices"))
    show.say(f"\n... noticed after {time.monotonic() - started:.1f} s, and is started again ...")
    started = time.monotonic()
    berth.restart(NVML_AGENT)
    berth.until(lambda: _readiness(berth)[NVML_NODE] == "True", what=f"the Device of {NVML_NODE} to be back")
    show.command(f"kubectl get device {NVML_NODE}", berth.cluster.kubectl("get", "device", NVML_NODE))
    show.say(f"\n... back after {time.monotonic() - started:.1f} s")


def _check(berth: Installation, expected: set[str], *, quiet: bool = False) -> str:
    """Audit everything; return the summary.

    Raises:
        DemoError: there is a fault, or not exactly the expected pods are bound.
    """
    pods, devices = berth.list("/api/v1/pods"), berth.list(DEVICES)
    faults = audit(pods=pods, nodes=berth.list("/api/v1/nodes"), devices=devices)
    if faults or not quiet:
        show.audit(faults, pods=len(pods), devices=len(devices))
    if faults:
        raise DemoError(f"the audit found {len(faults)} faults\n{berth.logs()}")
    if (bound := _bound(berth)) != expected:
        raise DemoError(f"bound are {sorted(bound)}, but should be {sorted(expected)}\n{berth.logs()}")
    if not any(_grants(pod) for pod in map(Pod.read, pods) if pod.name == f"default/{ROUTED}"):
        raise DemoError(f"pod {ROUTED} is bound without its share\n{berth.logs()}")
    cards = {(pod.node, grant.type, grant.minor) for pod in map(Pod.read, pods) for grant in _grants(pod)}
    return f"demo: {len(bound)} pods bound, {len(cards)} devices allocated, {len(faults)} conflicts"


# --- what the API server says -------------------------------------------------------------------------------


def _bound(berth: Installation) -> set[str]:
    return {pod["metadata"]["name"] for pod in berth.list(PODS) if pod["spec"].get("nodeName")}


def _readiness(berth: Installation) -> dict[str, str]:
    """Return the status of each Device's Ready condition."""
    return {device["metadata"]["name"]: _condition(device, "Ready").get("status", "") for device in berth.list(DEVICES)}


def _why_it_waits(berth: Installation) -> str:
    pod = berth.cluster.api.get(f"{PODS}/{WAITING}")
    scheduled = _condition(pod, "PodScheduled")
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""


def _condition(manifest: Manifest, kind: str) -> Manifest:
    conditions: list[Manifest] = manifest.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _shown_use(berth: Installation) -> dict[str, float]:
    """Return how many GPUs each Device shows as allocated."""
    return {device["metadata"]["name"]: float(device["status"].get("allocated", 0)) for device in berth.list(DEVICES)}


def _held(berth: Installation) -> dict[str, float]:
    """Return how many GPUs the pods of each node hold by their annotations."""
    hundredths = dict.fromkeys(NODES, 0)
    for pod in map(Pod.read, berth.list(PODS)):
        for grant in _grants(pod):
            hundredths[pod.node] += grant.amounts.get("gpu-memory-ratio", 0)
    return {node: amount / 100 for node, amount in hundredths.items()}


def _grants(pod: Pod) -> list[Grant]:
    return grants(pod.annotations.get(show.ALLOCATION, "{}"))


if __name__ == "__main__":
    sys.exit(main())
