"""Whether claims that take long hold up other pods: `python -m tests.bench.speed.claims_hold`.

NODES, DEVICES (on each node), WAITING, SLOW and SECONDS are environment variables. WAITING pods of one namespace wait
for devices that do not exist, each with its own selector. Half of the selectors compare an attribute with a constant,
as for a UUID. SLOW further pods have a selector that takes 10 ms or more for each device. For SECONDS, pods without
claims are created and bound. In the middle, a pod with a simple claim is created in another namespace.

`p99_s` is the time until pods without claims are bound, and `cheap_s` until the pod with the simple claim is.
`terms_lost` counts the terms that the operator lost. `rss_mb` is the highest memory of the operator and of its worker
process.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import Arena, waiting
from tests.bench import figures
from tests.bench.cluster import contestants, track, usage
from tests.bench.cluster.track import Opener, Track
from tests.bench.cluster.watcher import Watcher
from tests.bench.resources.memory import MIB
from tests.programs.processes import LEADING, Process

DRIVER: Final = "hold.example.com"
PATH: Final = f'device.attributes["{DRIVER}"]'
SLOW: Final = f"[{', '.join(['1'] * 95)}].all(x, [{', '.join(['1'] * 95)}].all(y, x + y == 2))"
TERMS: Final = {"lease_duration": 8, "renew_deadline": 7.0, "retry_period": 0.5}
PAUSE: Final = 0.05
"""Seconds between two pods without claims."""
BOUND_SECONDS: Final = 60.0
LIMITS: Final = {"p99_s": 1.0, "cheap_s": 2.0, "terms_lost": 0}
GROUP: Final = "/apis/resource.k8s.io/v1"

Raw = dict[str, Any]


def main(opener: Opener = track.opened) -> None:
    """Run the benchmark."""
    nodes, devices = figures.number("NODES", 300), figures.number("DEVICES", 10)
    waiters, slow = figures.number("WAITING", 70), figures.number("SLOW", 1)
    seconds = figures.number("SECONDS", 60)
    with opener(nodes) as opened:
        measured = measure(opened, devices=devices, waiters=waiters, slow=slow, seconds=seconds)
    held = all(measured[name] <= most for name, most in LIMITS.items())
    sizes = {"nodes": nodes, "devices": devices, "waiting": waiters, "slow": slow, "seconds": seconds}
    figures.result({"bench": "claims_hold", **measured, "held": held, **sizes})


def measure(track: Track, *, devices: int, waiters: int, slow: int, seconds: float) -> dict[str, float]:
    """Return the figures of one run."""
    arena = track.arena
    with _driver(arena, devices), _namespace(arena) as other, contextlib.ExitStack() as stack:
        operator = _operator(track)
        # Only has an effect if a wait fails. Otherwise the operator would lead in the next benchmark.
        stack.callback(operator.kill)
        operator.logged(LEADING, deadline=BOUND_SECONDS)
        for number in range(slow):
            _create(arena, arena.namespace, f"slow-{number}", f'{SLOW} && {PATH}.model == "none-{number}"')
        for number in range(waiters):
            selector = f'{PATH}.model == "i-{number}"' if number % 2 else f'{PATH}.model in ["i-{number}"]'
            _create(arena, arena.namespace, f"waits-{number}", selector)
        took, cheap = _bind(arena, other, seconds)
        worker = [usage.peak_bytes(pid) for pid in _children(operator.pid)]
        measured = {
            "p50_s": round(figures.quantile(took, 0.5), 3),
            "p99_s": round(figures.quantile(took, 0.99), 3),
            "cheap_s": round(cheap, 3),
            "terms_lost": operator.text().count(LEADING) - 1 + (operator.exit_code is not None),
            "rss_mb": round(usage.peak_bytes(operator.pid) / MIB),
            "worker_mb": round(sum(worker) / MIB),
        }
        operator.stop()
    return measured


def _bind(arena: Arena, other: str, seconds: float) -> tuple[list[float], float]:
    """Return the seconds until each pod without claims was bound, and the one with the simple claim."""
    created: dict[str, float] = {}
    with Watcher(arena.cluster, arena.namespace) as watcher, Watcher(arena.cluster, other) as others:
        ends_at, cheap_at = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < ends_at:
            if not cheap_at and now > ends_at - seconds / 2:
                _create(arena, other, "cheap", f'{PATH}.model == "i"')
                cheap_at = time.monotonic()
            name = f"plain-{len(created)}"
            created[name] = time.monotonic()
            arena.create([arena.pod(name, requests={"cpu": "1m"})])
            time.sleep(PAUSE)
        waiting.until(
            lambda: created.keys() <= watcher.bound.keys() and "cheap" in others.bound,
            deadline=BOUND_SECONDS,
            what="all pods without claims and the simple claim to be bound",
        )
        return [watcher.bound[name] - at for name, at in created.items()], others.bound["cheap"] - cheap_at


def _create(arena: Arena, namespace: str, name: str, selector: str) -> None:
    """Create a pod with a claim of a device that a selector matches."""
    exactly = {"deviceClassName": arena.id, "selectors": [{"cel": {"expression": selector}}]}
    claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "one", "exactly": exactly}]}}}
    arena.cluster.api.post(f"{GROUP}/namespaces/{namespace}/resourceclaims", claim)
    pod = arena.pod(name, resourceClaims=[{"name": "one", "resourceClaimName": name}])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "one"}]}
    pod["metadata"]["namespace"] = namespace
    arena.cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", pod)


@contextlib.contextmanager
def _driver(arena: Arena, devices: int) -> Iterator[None]:
    """List devices of all nodes, as a driver, and delete them at the end."""
    api = arena.cluster.api
    api.post(
        f"{GROUP}/deviceclasses",
        {"metadata": {"name": arena.id}, "spec": {"selectors": [_cel(f'device.driver == "{DRIVER}"')]}},
    )
    names = [each["metadata"]["name"] for each in api.get("/api/v1/nodes")["items"]]
    for node in names:
        listed = [{"name": f"d-{at}", "attributes": {"model": {"string": "i"}}} for at in range(devices)]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": listed}
        api.post(f"{GROUP}/resourceslices", {"metadata": {"name": f"{arena.id}-{node}"}, "spec": spec})
    try:
        yield
    finally:
        for node in names:
            api.delete(f"{GROUP}/resourceslices/{arena.id}-{node}")
        api.delete(f"{GROUP}/deviceclasses/{arena.id}")


def _cel(expression: str) -> Raw:
    return {"cel": {"expression": expression}}


@contextlib.contextmanager
def _namespace(arena: Arena) -> Iterator[str]:
    """Create a second namespace, and delete it at the end."""
    name = f"{arena.namespace}-other"
    arena.cluster.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        yield name
    finally:
        arena.cluster.api.delete(f"/api/v1/namespaces/{name}")


def _operator(track: Track) -> Process:
    """Start an operator whose pools are the driver's."""
    file = track.folder / "claims-hold.yaml"
    profile = {
        "schedulerName": track.arena.scheduler_name,
        "plugins": {"filters": {"disabled": ["injected"]}},
    }
    configuration = {
        "apiVersion": "config.berth.dev/v1alpha1",
        "kind": "BerthSchedulerConfiguration",
        "profiles": [profile],
        "claims": {"drivers": [DRIVER]},
    }
    file.write_text(yaml.safe_dump(configuration))
    ours = contestants.ours(track.arena, track.folder, TERMS)
    by_file = ("--scheduler-names=", "--no-require-injection")
    command = (*(each for each in ours.command if not each.startswith(by_file)), f"--config={file}")
    return replace(ours, command=command).start()


def _children(pid: int) -> Sequence[int]:
    """Return the processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for task in tasks for each in task.read_text().split()]


if __name__ == "__main__":
    main()
