"""The initial load of a cluster: pods that hold cards as if an operator had bound them, and pods that fit nowhere."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from devcluster import Arena, waiting
from tests.bench import figures
from tests.bench.cluster.track import Track

RUNNING_SECONDS: Final = 3600.0
"""Seconds until the pods run: kwok uses the same cores, 5 ms a pod and more."""
WHOLE: Final = 100
"""Percent of a card."""
APPS: Final = 400
"""Number of different sets of labels among the pods that hold cards."""
KINDS: Final = 400
"""Number of different requests among the pods that fit nowhere."""
GPU: Final = "nvidia.com/gpu"
CORE: Final = "kubernetes.io/gpu-core"
MEMORY: Final = "kubernetes.io/gpu-memory"
RATIO: Final = "kubernetes.io/gpu-memory-ratio"
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
VISIBLE: Final = "main.devices.berth.dev/visible"
EPOCH: Final = "berth.dev/epoch"
DEVICES: Final = "/apis/berth.dev/v1alpha1/devices"

Raw = dict[str, Any]


class Card(NamedTuple):
    """One GPU of the fleet."""

    node: str
    minor: int
    id: str


def cards(track: Track) -> list[Card]:
    """Return all GPUs that the Devices list."""
    return [
        Card(device["metadata"]["name"], card["minor"], card["id"])
        for device in asyncio.run(track.read_all(DEVICES))
        for card in device["spec"]["devices"]
        if card["type"] == "gpu"
    ]


def holders(arena: Arena, held: Sequence[Card], count: int) -> list[Raw]:
    """Return pods that hold these cards; if there are more pods than cards, the first cards are held by two pods each.

    Raises:
            ValueError: there are too few or too many pods for the cards.
    """
    halves = count - len(held)
    if not 0 <= halves <= len(held):
        raise ValueError(f"{len(held)} cards are held by {len(held)} to {2 * len(held)} pods, not by {count}")
    places = [*itertools.chain.from_iterable((card, card) for card in held[:halves]), *held[halves:]]
    return [
        _holder(arena, number, card, percent=WHOLE // 2 if number < 2 * halves else WHOLE)
        for number, card in enumerate(places)
    ]


def hopeless(arena: Arena, count: int) -> list[Raw]:
    """Return pods that fit nowhere; each class has one of several reasons."""
    return [_hopeless(arena, number) for number in range(count)]


def fill(track: Track, pods: Sequence[Raw]) -> None:
    """Create bound pods and wait until they run: before that, each is still going to change once."""
    began = time.monotonic()
    asyncio.run(track.create(pods))
    seconds = time.monotonic() - began
    pause = max(0.5, len(pods) / 10_000)  # each list makes the API server walk over all pods
    waiting.until(lambda: not _bound_pending(track), deadline=RUNNING_SECONDS, what="all pods to run", poll=pause)
    figures.say(f"{len(pods)} bound pods made in {seconds:.0f} s, running after {time.monotonic() - began:.0f} s")


def wait_for_reasons(track: Track, pods: Sequence[Raw]) -> None:
    """Create waiting pods, and wait until each has a reason."""
    began = time.monotonic()
    asyncio.run(track.create(pods))
    waiting.until(
        lambda: sum(1 for _ in reasons(_listed(track, "spec.nodeName="))) >= len(pods),
        deadline=RUNNING_SECONDS,
        what="all pods to report why they wait",
        poll=0.5,
    )
    figures.say(f"{len(pods)} pods wait and report why after {time.monotonic() - began:.0f} s")


def taken(pods: Sequence[Raw]) -> Counter[tuple[str, int]]:
    """Return the percent of each (node, minor) that bound pods hold, from their annotations alone."""
    held: Counter[tuple[str, int]] = Counter()
    for pod in pods:
        for card in json.loads(pod["metadata"]["annotations"].get(ALLOCATED, "{}")).get("gpu", ()):
            held[pod["spec"]["nodeName"], card["minor"]] += int(card["resources"][CORE])
    return held


# --- pods that hold cards ------------------------------------------------------------------------------------------


def _holder(arena: Arena, number: int, card: Card, *, percent: int) -> Raw:
    requests = {GPU: "1"} if percent == WHOLE else {CORE: str(percent), RATIO: str(percent)}
    memory = f"{80 * percent // 100}Gi"
    part = {"minor": card.minor, "id": card.id, "resources": {CORE: str(percent), MEMORY: memory, RATIO: str(percent)}}
    app = f"app-{number % APPS}"
    pod = arena.pod(
        f"{app}-{number}",
        requests={"cpu": "1", "memory": "1Gi", **requests},
        limits=requests,
        labels={"app": app, "pod-template-hash": f"{number % APPS:010d}", "team": f"team-{number % 10}"},
        annotations={ALLOCATED: json.dumps({"gpu": [part]}), VISIBLE: card.id, EPOCH: "1"},
        nodeName=card.node,
    )
    pod["spec"]["containers"][0] |= _usual_fields(app)
    return pod


def _usual_fields(app: str) -> Raw:
    """Return the other fields that containers usually have: the scheduler reads none of them and must skip most."""
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{VISIBLE}']"}}
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10}
    return {
        "image": f"registry.example.com/team/{app}:v1.2.3",
        "command": ["python3", "-m", "serve"],
        "args": ["--model=/models/main", "--port=8080", "--tensor-parallel-size=1"],
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": field},
            *({"name": f"SETTING_{number}", "value": f"value of setting {number}"} for number in range(8)),
        ],
        "ports": [{"name": "http", "containerPort": 8080}],
        "livenessProbe": probe,
        "readinessProbe": probe,
    }


# --- pods that fit nowhere -----------------------------------------------------------------------------------------


def _hopeless(arena: Arena, number: int) -> Raw:
    kind = number % KINDS
    spec = next(itertools.islice(itertools.cycle(HOPELESS), kind % len(HOPELESS), None))(kind)
    extra, annotations = spec.pop("requests", {}), spec.pop("annotations", {})
    requests = {"cpu": f"{100 + kind}m", "memory": "1Gi", GPU: "1", **extra}
    limits = {name: amount for name, amount in requests.items() if name == GPU}
    return arena.pod(f"hopeless-{number}", requests=requests, limits=limits, annotations=annotations, **spec)


def _other_model(_kind: int) -> Raw:
    return {"annotations": {"berth.dev/gpu-model": "*of-no-card*"}}


def _other_nodes(kind: int) -> Raw:
    return {"nodeSelector": {"pool": f"pool-without-nodes-{kind}"}}


def _much_cpu(kind: int) -> Raw:
    return {"requests": {"cpu": str(1000 + kind)}}


def _many_cards(_kind: int) -> Raw:
    return {"requests": {GPU: "8"}}


HOPELESS: Final[tuple[Callable[[int], Raw], ...]] = (_other_model, _other_nodes, _much_cpu, _many_cards)


# --- results -------------------------------------------------------------------------------------------------------


def _bound_pending(track: Track) -> list[Raw]:
    return _listed(track, "spec.nodeName!=,status.phase=Pending", limit="1")


def _listed(track: Track, selector: str, **query: str) -> list[Raw]:
    items: list[Raw] = track.arena.cluster.api.get(track.pods, fieldSelector=selector, **query)["items"]
    return items


def reasons(pods: Sequence[Raw]) -> Iterator[str]:
    """Return the reasons of waiting pods, from their conditions."""
    for pod in pods:
        for condition in pod["status"].get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                yield condition["message"]
