"""The demo shows four things, and exits with status 0 only if all of them are as they should be.

`--page` then leaves the dashboard's page on the demo's cluster until Ctrl-C.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from demo import show
from demo.audit import audit
from demo.audit.view import Grant, Pod, grants
from demo.installation import EXAMPLES, MORTAL, MORTAL_AGENT, NODES, DemoError, Installation
from devcluster import Cluster, DevclusterError
from devcluster.additions import installation
from devcluster.building import programs
from devcluster.control_plane.api import ApiError

Manifest = dict[str, Any]

SHARES: Final = ("half", "by-memory", "two-cards", "whole")
"""The files of `manifests/examples` with pods that get cards and shares of them."""
GANG: Final = "gang"
"""The file with a PodGroup, and a Job with its workers."""
WAITING: Final = "waits"
"""The file, and its pod, that must wait."""
LATE: Final = "late"
"""The pod that is created while the only node for it is dead."""
EXPLAINED: Final = ("State:", "Message:", "New node:")
"""The lines of `kubectl berth explain` that are shown."""
PODS: Final = "/api/v1/namespaces/default/pods"
DEVICES: Final = "/apis/berth.dev/v1alpha1/devices"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--page", action="store_true", help="leave the dashboard's page running until Ctrl-C")
    options = parser.parse_args(arguments)
    # SIGTERM ends it as Ctrl-C does: through the context manager that stops the cluster.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _running_cluster() as cluster:
            berth = Installation(cluster=cluster)
            summary = _story(berth)
            print(summary, flush=True)  # noqa: T201 - the last line, exactly so
            if options.page:
                show.say("The page of this cluster, until Ctrl-C:")
                berth.serve_page()
    except (DemoError, DevclusterError, ApiError, OSError, subprocess.SubprocessError) as error:
        show.failure(str(error))
        return 1
    except KeyboardInterrupt:
        show.failure("interrupted")
        return 130
    return 0


@contextlib.contextmanager
def _running_cluster() -> Iterator[Cluster]:
    # Before the first step, because a download or a build shows its own steps.
    programs.ensure(download=True)
    cluster = Cluster(download=True)
    try:
        with show.step("a Kubernetes cluster: etcd, API server, controllers, and kwok for the nodes"):
            cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _story(berth: Installation) -> str:
    with show.step(f"Berth, and {len(NODES)} nodes with simulated cards"):
        berth.install()
        berth.start_programs()
        berth.until(lambda: _readiness(berth) == dict.fromkeys(NODES, "True"), what="every Device to be Ready")
        berth.until(lambda: installation.routes(berth.cluster, installation.PROBE), what="the policies to be in force")
        berth.until(lambda: installation.answers(berth.cluster), what="the visibility API to answer")
    bound = _share(berth)
    bound |= _form_a_gang(berth)
    _wait(berth)
    bound |= _lose_a_node(berth)
    return _check(berth, bound)


def _share(berth: Installation) -> set[str]:
    show.heading("1. Exact cards and shares")
    names = {pod["metadata"]["name"] for file in SHARES for pod in berth.apply(EXAMPLES / f"{file}.yaml")}
    berth.until(lambda: _bound(berth) == names, what=f"exactly these pods to be bound: {sorted(names)}")
    berth.until(lambda: _shown_use(berth) == _held(berth), what="the Devices to show what is held")
    show.pods(berth.list(PODS))
    return names


def _form_a_gang(berth: Installation) -> set[str]:
    show.heading("2. A gang: four workers start together, or none does")
    group, job = installation.documents(EXAMPLES / f"{GANG}.yaml")
    berth.cluster.api.apply(group)
    # Pods in place of the Job, so that one can be late.
    template = job["spec"]["template"]
    workers: list[Manifest] = [
        {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": f"train-{number}"}}
        for number in range(job["spec"]["parallelism"])
    ]
    names = {worker["metadata"]["name"] for worker in workers}
    for worker in workers[:-1]:
        berth.cluster.api.apply(worker)
    reason = berth.until(lambda: _why_it_waits(berth, "train-0"), what="the reason why three workers wait")
    show.say(f"Three of them exist. {reason}")
    if waiting := names & _bound(berth):
        raise DemoError(f"{sorted(waiting)} are bound before the gang is complete\n{berth.logs()}")
    berth.cluster.api.apply(workers[-1])
    berth.until(lambda: names <= _bound(berth), what="the four workers to be bound")
    show.say("The fourth comes, and all four are bound, close together:")
    show.pods(pod for pod in berth.list(PODS) if pod["metadata"]["name"] in names)
    return names


def _wait(berth: Installation) -> None:
    show.heading("3. A pod that waits, and why")
    berth.apply(EXAMPLES / f"{WAITING}.yaml")
    berth.until(lambda: _why_it_waits(berth, WAITING), what=f"the reason why {WAITING} waits")
    lines = [line for line in berth.explain(WAITING).splitlines() if line.startswith(EXPLAINED)]
    show.command(f"kubectl berth explain {WAITING}", "\n".join(map(_without_preemption, lines)))


def _lose_a_node(berth: Installation) -> set[str]:
    show.heading("4. A node dies and comes back")
    started = time.monotonic()
    berth.kill(MORTAL_AGENT)
    berth.set_node_ready(MORTAL, status="Unknown")
    berth.until(lambda: _readiness(berth)[MORTAL] == "Unknown", what=f"the Device of {MORTAL} to be stale")
    show.say(f"{MORTAL} is dead, and Berth has noticed after {time.monotonic() - started:.1f} s:")
    show.command("kubectl get devices", berth.cluster.kubectl("get", "devices"))
    [late] = installation.documents(EXAMPLES / "by-model.yaml")
    late["metadata"] |= {"name": LATE, "annotations": {"berth.dev/gpu-model": "*L40S*"}}
    berth.cluster.api.apply(late)
    reason = berth.until(lambda: _why_it_waits(berth, LATE), what=f"the reason why {LATE} waits")
    show.say(f"A new pod for an L40S, which only {MORTAL} has, waits. {reason}")
    started = time.monotonic()
    berth.set_node_ready(MORTAL, status="True")
    berth.restart(MORTAL_AGENT)
    berth.until(lambda: LATE in _bound(berth), what=f"{LATE} to be bound")
    show.say(f"{MORTAL} comes back, and {time.monotonic() - started:.1f} s later the pod has its card:")
    show.pods(pod for pod in berth.list(PODS) if pod["metadata"]["name"] == LATE)
    return {LATE}


def _check(berth: Installation, expected: set[str]) -> str:
    """Audit everything; return the summary.

    Raises:
        DemoError: there is a fault, or not exactly the expected pods are bound.
    """
    pods, devices = berth.list("/api/v1/pods"), berth.list(DEVICES)
    if faults := audit(pods=pods, nodes=berth.list("/api/v1/nodes"), devices=devices):
        raise DemoError("\n".join([f"the audit found {len(faults)} faults", *map(str, faults), berth.logs()]))
    if (bound := _bound(berth)) != expected:
        raise DemoError(f"bound are {sorted(bound)}, but should be {sorted(expected)}\n{berth.logs()}")
    cards = {(pod.node, grant.type, grant.minor) for pod in map(Pod.read, pods) for grant in _grants(pod)}
    return f"demo: {len(bound)} pods bound, {len(cards)} devices allocated, {len(faults)} conflicts"


# --- what the API server says -------------------------------------------------------------------------------


def _bound(berth: Installation) -> set[str]:
    return {pod["metadata"]["name"] for pod in berth.list(PODS) if pod["spec"].get("nodeName")}


def _readiness(berth: Installation) -> dict[str, str]:
    """Return the status of each Device's Ready condition."""
    return {device["metadata"]["name"]: _condition(device, "Ready").get("status", "") for device in berth.list(DEVICES)}


def _why_it_waits(berth: Installation, pod: str) -> str:
    scheduled = _condition(berth.cluster.api.get(f"{PODS}/{pod}"), "PodScheduled")
    return _without_preemption(str(scheduled.get("message", ""))) if scheduled.get("status") == "False" else ""


def _without_preemption(message: str) -> str:
    return message.partition(" preemption: ")[0]


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
