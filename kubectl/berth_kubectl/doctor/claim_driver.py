"""Checks of the driver `gpu.berth.dev`: nodes without it, slices that differ from the Device, runtimes without CDI."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from berth_api import names
from berth_kubectl.doctor.facts import Facts, Finding, pods_of_agent
from berth_kubectl.reading.objects import Object, condition, key_of, name_of

ROLE: Final = "berth-agent-dra"
"""The ClusterRole of installations whose agents are drivers."""
TAINT: Final = f"{names.DRA_DRIVER}/unhealthy"
FIRST_WITH_CDI: Final = {"containerd": (1, 7), "cri-o": (1, 23)}
"""Container runtime -> its first version that reads CDI devices from kubelet."""
FIRST_MINOR: Final = 34
"""Of the API servers and kubelets of Kubernetes 1 with resource.k8s.io/v1, which operator and agents use."""
_RUNTIME: Final = re.compile(r"^([a-z-]+)://v?(\d+)\.(\d+)")
_UNRESOLVED: Final = re.compile(rf"unresolvable CDI devices.*\bk8s\.{re.escape(names.DRA_DRIVER)}/claim=")


def no_claim_driver(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each node whose cards are given by claim and whose agent is no driver."""
    devices = facts.by_name("devices")
    minor = facts.minor or FIRST_MINOR
    is_old = minor < FIRST_MINOR
    for node in facts.all_of("nodes"):
        name = name_of(node)
        if cards_label(node) and name in devices and not condition(devices[name], names.CLAIMS_SERVED):
            yield Finding(
                check="NoClaimDriver",
                object=f"node/{name}",
                message=f"it has the label {names.CARDS_KEY}={cards_label(node)}, but its agent is no driver of "
                "ResourceClaims, so its cards are given by name"
                + f". Kubernetes 1.{minor} is too old for such a driver"
                * is_old,
                fix=f"kubectl label node {name} {names.CARDS_KEY}-   # claims need API server and kubelet "
                f"1.{FIRST_MINOR}, and dra.enabled=true"
                if is_old
                else "helm upgrade berth charts/berth --reset-then-reuse-values --set dra.enabled=true   "
                "# or remove the label",
            )


def stale_slices(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each node whose ResourceSlices differ from its Device; a failure to write is a condition."""
    nodes, listed = facts.by_name("nodes"), dict[str, dict[str, Object]]()
    for resource_slice in facts.all_of("resourceslices"):
        of_node = listed.setdefault(str(resource_slice["spec"].get("nodeName")), {})
        for device in resource_slice["spec"].get("devices") or ():
            if uuid := (device.get("attributes") or {}).get("uuid", {}).get("string"):
                of_node[uuid] = device
    for device in facts.all_of("devices"):
        name = name_of(device)
        if name in nodes and condition(device, names.CLAIMS_SERVED).get("status") == "True":
            differences = list(_differences(device, listed.get(name, {}), cards_label(nodes[name])))
            if differences:
                more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
                yield Finding(
                    check="StaleSlices",
                    object=f"node/{name}",
                    message=f"ResourceSlices of {names.DRA_DRIVER} differ from the Device: {differences[0]}{more}",
                    fix=pods_of_agent(facts, name) + "   # if it stays for a minute, read the agent's log",
                )


def _differences(device: Object, listed: Mapping[str, Object], label: str) -> Iterator[str]:
    cards = [card for card in (device.get("spec") or {}).get("devices") or () if card["type"] == names.GPU]
    # By name: what a claim holds stays in the slices.
    held = {
        use["minor"]
        for use in (device.get("status") or {}).get("devices") or ()
        if any(not holder["name"].startswith("resourceclaim/") for holder in use.get("holders") or ())
    }
    known: dict[str, Object] = {}
    for card in cards:
        mig = card.get("mig") or {}
        uuids = [instance["id"] for instance in mig.get("instances") or ()] if mig.get("enabled") else [card["id"]]
        known |= dict.fromkeys(uuids, card)
    for uuid, card in known.items():
        if uuid not in listed:
            if label == names.CARDS_BY_CLAIMS_AND_NAME:
                # Also faulty cards and those of pods by name, with taints, which such an API server keeps.
                is_missing = uuid == card["id"]
            else:
                # A card of a pod by name is not listed, and a faulty card is not where the API server drops taints.
                is_missing = bool(label) and card["health"] and card["minor"] not in held
            if is_missing:
                yield f"they lack {uuid}"
        elif not label:
            yield f"they list {uuid}, but the node gives its cards by name"
        elif label == names.CARDS_BY_CLAIMS_AND_NAME and uuid != card["id"]:
            yield f"they list {uuid}, but the node gives MIG instances by name"
        elif card["health"] == any(taint["key"] == TAINT for taint in listed[uuid].get("taints") or ()):
            yield f"{uuid} is healthy, but has the taint {TAINT}" if card["health"] else f"{uuid} lacks {TAINT}"
    yield from (f"the Device has no {uuid}" for uuid in listed if uuid not in known)


def cdi_not_read(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each node with the driver whose runtime has no CDI, and for each pod that CDI fails."""
    fix = "grep -E 'enable_cdi|cdi_spec_dirs' /etc/containerd/config.toml   # on {node}: the runtime must read the "
    fix += "agent's --cdi-folder, by default /var/run/cdi"
    for node in facts.all_of("nodes"):
        version = str((node["status"].get("nodeInfo") or {}).get("containerRuntimeVersion") or "")
        runtime = _RUNTIME.match(version)
        first = FIRST_WITH_CDI.get(runtime[1]) if runtime else None
        if cards_label(node) and runtime and first and (int(runtime[2]), int(runtime[3])) < first:
            yield Finding(
                check="CdiNotRead",
                object=f"node/{name_of(node)}",
                message=f"{version} does not read CDI, so containers with claims have no devices",
                fix=f"kubectl label node {name_of(node)} {names.CARDS_KEY}-   # until the runtime is newer",
            )
    for pod in facts.all_of("starting"):
        status = pod.get("status") or {}
        for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            waiting = (container.get("state") or {}).get("waiting") or {}
            if _UNRESOLVED.search(str(waiting.get("message") or "")):
                namespace, name = key_of(pod)
                yield Finding(
                    check="CdiNotRead",
                    object=f"pod/{namespace}/{name}",
                    message=f"the container runtime of {pod['spec']['nodeName']} does not find the CDI devices of its "
                    "claims",
                    fix=fix.format(node=pod["spec"]["nodeName"]),
                )
                break


def cards_label(node: Object) -> str:
    """Return how the label has the node's cards given, other than by name; empty if by name."""
    label = str((node["metadata"].get("labels") or {}).get(names.CARDS_KEY) or "")
    return label if label in {names.CARDS_BY_CLAIMS, names.CARDS_BY_SHARES, names.CARDS_BY_CLAIMS_AND_NAME} else ""
