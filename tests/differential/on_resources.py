"""A rule about resources: the first node has exactly enough, and the last node has one unit too little.

The rule comes last, because all pods on a node count. It uses Berth's own code for sums. If this code is wrong, a node
that should just fit does not, or the other way round, and the verdicts differ.
"""

from random import Random
from typing import Final

from berth_api import resources
from berth_api.resources import resize
from tests.differential.draft import Draft, Raw, container

UNITS: Final = {"cpu": 1, "memory": 1, "ephemeral-storage": 1, "example.com/thing": 1, "hugepages-2Mi": 2 << 20}
LEVEL: Final = ("cpu", "memory")
HEAVY: Final = {"cpu": "25m", "memory": "1000"}
"""The overhead of the RuntimeClass `heavy`."""


def node_resources(draft: Draft, *, focus: bool) -> None:
    """Make the probe request resources in every way in which a pod can request them."""
    draft.probe["spec"] |= _spec(draft.random, draft.probe["spec"])
    for node in draft.nodes:
        for _ in range(draft.random.randint(0, 2)):
            _hold(draft, node)
    need = resources.total(_with_overhead(draft.probe["spec"]))
    short = draft.random.choice([*need, "pods"])
    for node in draft.nodes:
        spare = {name: draft.random.choice([0, 0, 1, 100]) for name in (*UNITS, "pods")}
        if (node is draft.last and focus) or (node in draft.between and draft.random.random() < 0.4):
            spare[short] = -1
        _offer(draft, node, need, spare)


def _offer(draft: Draft, node: Raw, need: dict[str, int], spare: dict[str, int]) -> None:
    total = {**dict.fromkeys(UNITS, 0), **need}
    held = draft.on(node)
    for pod in held:
        spec, status, by_sums = _with_overhead(pod["spec"]), pod.get("status") or {}, draft.kubernetes >= 37
        total = resources.added(total, resize.held(spec, status, by_sums=by_sums))
    amounts = {name: max(total[name] + spare[name] * unit, 0) for name, unit in UNITS.items()}
    shown = {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in amounts.items()}
    shown["pods"] = str(len(held) + 1 + spare["pods"])
    node["status"] |= {"allocatable": shown, "capacity": dict(shown)}


def _hold(draft: Draft, node: Raw) -> None:
    random = draft.random
    spec = _spec(random, {})
    status: Raw = {}
    # Where there are huge pages, the API server adds requests at the pod's level that the draft does not show.
    plain = "resources" not in spec or "hugepages-2Mi" not in resources.combined(resources.containers(spec))
    if plain and random.random() < 0.6:
        kinds = {"containerStatuses": spec["containers"], "initContainerStatuses": spec.get("initContainers", [])}
        status = {kind: [_container_status(random, each) for each in found] for kind, found in kinds.items()}
        if random.random() < 0.4:
            reason = random.choice(["Infeasible", "Deferred"])
            status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
        if "resources" in spec and random.random() < 0.5:
            status |= {"resources": {"requests": {"cpu": "900m"}}, "allocatedResources": {"cpu": "800m"}}
    draft.put(node, spec, status=status)


def _container_status(random: Random, part: Raw) -> Raw:
    """Return a container's status: resized up, down or not at all."""
    status: Raw = {"name": part["name"], "image": "none", "imageID": "", "ready": True, "restartCount": 0, "state": {}}
    if random.random() < 0.8:
        status["resources"] = {
            "requests": {"cpu": f"{random.randint(1, 900)}m", "memory": str(random.randint(1, 9000))}
        }
    if random.random() < 0.6:
        status["allocatedResources"] = {"cpu": f"{random.randint(1, 900)}m", "memory": str(random.randint(1, 9000))}
    return status


def _spec(random: Random, before: Raw) -> Raw:
    """Return containers of all kinds with requests, in addition to the existing ones."""
    requested = _amounts(random)
    spec: Raw = {"containers": [{**(before.get("containers") or [container("main")])[0], "resources": requested}]}
    spec["containers"] += (before.get("containers") or [])[1:]
    if random.random() < 0.3:
        spec["containers"].append(container("second", resources=_amounts(random)))
    inits = list(before.get("initContainers") or [])
    for i in range(random.choice([0, 0, 1, 2])):
        sidecar = {"restartPolicy": "Always"} if random.random() < 0.5 else {}
        inits.append(container(f"init-{i}", resources=_amounts(random), **sidecar))
    if inits:
        spec["initContainers"] = inits
    if random.random() < 0.3:
        spec["runtimeClassName"] = "heavy"
    if random.random() < 0.3:
        # Never less than the sum of the containers, which the API server would reject.
        sums = resources.combined(resources.containers(spec))
        level = {name: sums.get(name, 0) + random.choice([0, 5]) for name in random.sample(LEVEL, random.randint(1, 2))}
        spec["resources"] = {"requests": {name: _shown(name, amount) for name, amount in level.items()}}
    return spec


def _amounts(random: Random) -> Raw:
    requested: dict[str, int] = {}
    if random.random() < 0.8:
        requested["cpu"] = random.choice([0, 1, 10, 250])
    if random.random() < 0.7:
        requested["memory"] = random.choice([0, 1, 4096, 2**20])
    if random.random() < 0.3:
        requested["ephemeral-storage"] = random.choice([0, 1, 500])
    # These two must be limited as well, and huge pages need cpu or memory in addition.
    limited = {}
    if random.random() < 0.3:
        limited["example.com/thing"] = random.choice([1, 2])
    if random.random() < 0.2 and "cpu" in requested:
        limited["hugepages-2Mi"] = random.choice([2, 4]) << 20
    requests = {"requests": {name: _shown(name, amount) for name, amount in {**requested, **limited}.items()}}
    return {**requests, "limits": {name: str(amount) for name, amount in limited.items()}}


def _shown(name: str, amount: int) -> str:
    return f"{amount}m" if name == "cpu" else str(amount)


def _with_overhead(spec: Raw) -> Raw:
    return {**spec, "overhead": HEAVY} if "runtimeClassName" in spec else spec


RUNTIME_CLASS: Final = (
    "/apis/node.k8s.io/v1/runtimeclasses",
    {"metadata": {"name": "heavy"}, "handler": "heavy", "overhead": {"podFixed": HEAVY}},
)
