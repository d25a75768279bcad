"""Checks of the Devices: failed devices and their holders, use by pods beyond that, and conditions that are False."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from berth_api import names
from berth_api.allocation import REPLICA_MARK, mig
from berth_api.objects import device_text, faults, ownership
from berth_api.request import NVIDIA_GPU, ONLY
from berth_kubectl.doctor.facts import Facts, Finding, pods_of_agent
from berth_kubectl.reading.fleet import faults_of
from berth_kubectl.reading.objects import Object, condition, key_of, name_of
from berth_kubectl.reading.queue import group_of

SHOWN: Final = 4
"""Pods or nodes that a finding names before it counts the others."""
MAX_SLICED: Final = 64
"""Maximum number of pods with slices that are read."""
REBOOT: Final = "UntilReboot"
RESET: Final = "UntilReset"
REPORTED: Final = (
    names.DRIVER_LOADED,
    names.INVENTORY_READ,
    names.DEVICES_OFFERED,
    names.CLAIMS_SERVED,
    names.ANNOTATIONS_READ,
    names.DEVICE_IDS_MATCHED,
    names.WRITES_ACCEPTED,
    names.VALID,
    names.ACCOUNTED,
    names.HELD_ONCE,
    names.BOUND_BY_BERTH,
    names.GIVEN_BY_NAME,
    names.RESOURCES_WRITTEN,
)
"""Conditions of Devices, also with a type behind a dot. `Ready` is not one: it repeats others and the Lease."""


def failed_device(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each device with a fault, except those that a person cordoned."""
    for device in facts.all_of("devices"):
        for card in (device.get("spec") or {}).get("devices") or ():
            found = [fault for fault in faults_of(card) if fault.kind != faults.CORDONED]
            if found:
                node, ends = name_of(device), {fault.ends for fault in found}
                what = f"{device_text.of_device(card['type'], card['minor'], card['id'])} {card['id']}"
                fix = f"kubectl get device {node} -o yaml"
                if REBOOT in ends:
                    drain = f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
                    fix = f"{drain}   # then reboot it, and uncordon it"
                elif RESET in ends and card["type"] == "gpu":
                    fix = _reset(device, card)
                uses = (device.get("status") or {}).get("devices") or ()
                key = (card["type"], card["minor"])
                holders = [
                    holder for use in uses if (use["type"], use["minor"]) == key for holder in use.get("holders") or ()
                ]
                pods = sorted({f"{holder['namespace']}/{holder['name']}" for holder in holders})
                more = f" and {len(pods) - SHOWN} more" if len(pods) > SHOWN else ""
                held_by = f"held by {', '.join(pods[:SHOWN])}{more}" if pods else "no pod holds it"
                yield Finding(
                    check="FailedDevice",
                    object=f"node/{node}",
                    message=f"{what} is not allocated ({faults.text(found)}); {held_by}",
                    fix=fix,
                )


def _reset(device: Object, card: Object) -> str:
    """Return the command after which the agent takes a card as reset, on its node; how to see it, for other vendors."""
    node = name_of(device)
    match (device["metadata"].get("labels") or {}).get(names.VENDOR_LABEL, "nvidia"):
        case "nvidia":
            return f"nvidia-smi --gpu-reset -i {card['id']}   # on {node}, once no pod holds the GPU"
        case "amd":
            # A card that the driver gave up counts as reset once the driver binds it again.
            return f"modprobe -r amdgpu && modprobe amdgpu   # on {node}, once no pod holds a GPU of the node"
    return f"kubectl get device {node} -o yaml"


def exceeded_share(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each pod that uses more memory of a card than its share."""
    for device in facts.all_of("devices"):
        for use in (device.get("status") or {}).get("exceeding") or ():
            card = device_text.of_device(use["type"], use["minor"], "")
            yield Finding(
                check="ExceededShare",
                object=f"pod/{use['namespace']}/{use['pod']}",
                message=f"its processes use {use['memory']} of {card} on {name_of(device)}, its share is "
                f"{use['limit']}: other pods of the card may lack memory",
                fix=f"kubectl delete pod -n {use['namespace']} {use['pod']}   # or ask its owner to request more",
            )


def card_not_held(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each pod and each card that it uses and does not hold."""
    for device in facts.all_of("devices"):
        for use in (device.get("status") or {}).get("unheld") or ():
            card = device_text.of_device(use["type"], use["minor"], "")
            yield Finding(
                check="CardNotHeld",
                object=f"pod/{use['namespace']}/{use['pod']}",
                message=f"its processes use {use['memory']} of {card} ({use['id']}) on {name_of(device)}, and it does "
                "not hold the card: pods that hold it may lack memory",
                fix=f"kubectl delete pod -n {use['namespace']} {use['pod']}   # or ask its owner to request the card",
            )


def other_manager(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each field manager that owns fields which only Berth writes, with its Devices."""
    owned: dict[str, dict[str, str]] = {}
    for device in facts.all_of("devices"):
        # A Device that no agent has written is a person's.
        if ownership.applied(device, names.AGENT).main:
            for manager, path in ownership.others(device, but={names.AGENT, names.OPERATOR}):
                owned.setdefault(manager, {}).setdefault(name_of(device), ownership.text(path))
    for manager, fields in sorted(owned.items()):
        nodes = sorted(fields)
        more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
        yield Finding(
            check="OtherManager",
            object=f"fieldmanager/{manager}",
            message=f"it writes Devices, such as {fields[nodes[0]]} ({', '.join(nodes[:SHOWN])}{more}): the agents "
            "replace its values, and while these stand no device of the node is allocated",
            fix="kubectl get devices -o yaml --show-managed-fields   # then let that program leave Devices alone",
        )


def slices_of_one_card(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each pod, and for the members of each gang, that hold several slices of a card or instance.

    Slices that were requested by their own name, or with the annotation, do not count.
    """
    pods = {key_of(pod): pod for pod in facts.all_of("sliced") if _requested(pod)}
    reported: set[tuple[str, str]] = set()
    for card, holders in _slice_holders(facts.all_of("devices")):
        read = sorted(holders.keys() & pods.keys())
        for key in read:
            pod = pods[key]
            members = [other for other in read if other != key and _is_same_gang(pod, pods[other])]
            if key in reported or _allows_several(pod) or (holders[key] == 1 and not members):
                continue
            reported.update((key, *members))
            if holders[key] > 1:
                what = f"it requested {_requested(pod)} and holds {holders[key]} slices of {card}: such a pod would"
            else:
                others = ", ".join(name for _, name in members[:SHOWN])
                more = f" and {len(members) - SHOWN} more" if len(members) > SHOWN else ""
                what = f"it and other members of its gang ({others}{more}) hold slices of {card}: such a gang would"
            namespace, name = key
            yield Finding(
                check="SlicesOfOneCard",
                object=f"pod/{namespace}/{name}",
                message=f"{what} wait now",
                fix=f"kubectl get pod -n {namespace} {name} -o yaml   # if several slices of one card are right, "
                f"set the annotation {names.GPU_SUBDEVICES}: {ONLY} in its template",
            )


def pods_with_slices(devices: Sequence[Object]) -> list[tuple[str, str]]:
    """Return (namespace, name) of the pods to read: at most `MAX_SLICED`, with several slices of one card first.

    The others hold a slice of a card of which another pod of the namespace holds one. They may be of one gang.
    """
    several, sharing = set[tuple[str, str]](), set[tuple[str, str]]()
    for _, holders in _slice_holders(devices):
        in_namespace = Counter(namespace for namespace, _ in holders)
        several.update(key for key, count in holders.items() if count > 1)
        sharing.update(key for key in holders if in_namespace[key[0]] > 1)
    return [*sorted(several), *sorted(sharing - several)][:MAX_SLICED]


def _slice_holders(devices: Sequence[Object]) -> Iterator[tuple[str, Counter[tuple[str, str]]]]:
    """Yield each sliced card or MIG instance, as messages name it, with the holders of its slices.

    The holders are (namespace, name) -> number of slices.
    """
    for device in devices:
        for use in (device.get("status") or {}).get("devices") or ():
            of_units: dict[str, Counter[tuple[str, str]]] = {}
            for holder in use.get("holders") or ():
                unit, mark, _ = (holder.get("id") or "").partition(REPLICA_MARK)
                if mark and use["type"] == names.GPU:
                    key = str(holder["namespace"]), str(holder["name"])
                    of_units.setdefault(unit, Counter())[key] += 1
            for unit, holders in of_units.items():
                of = f"MIG instance {unit} of " if unit.startswith("MIG-") else ""
                yield f"{of}{device_text.of_device(use['type'], use['minor'], '')} on {name_of(device)}", holders


def _requested(pod: Object) -> str:
    """Return the first resource by which a pod requested GPUs or instances; empty if it requested slices, or none."""
    containers = (*(pod["spec"].get("containers") or ()), *(pod["spec"].get("initContainers") or ()))
    requested = [name for container in containers for name in (container.get("resources") or {}).get("limits") or {}]
    whole = (name for name in requested if name == NVIDIA_GPU or (mig.is_resource(name) and not mig.is_shared(name)))
    return next(whole, "")


def _allows_several(pod: Object) -> bool:
    return (pod["metadata"].get("annotations") or {}).get(names.GPU_SUBDEVICES) == ONLY


def _is_same_gang(pod: Object, other: Object) -> bool:
    """Return whether two pods name one group, or were bound as members of one gang, which a controller may define."""
    bound_with = (pod["metadata"].get("annotations") or {}).get(names.BOUND_WITH, "").split(" ")[1:]
    is_bound_with = any(end and str(other["metadata"].get("uid")).endswith(end) for end in bound_with)
    in_namespace = pod["metadata"]["namespace"] == other["metadata"]["namespace"]
    return in_namespace and (is_bound_with or (group_of(pod) != "" and group_of(pod) == group_of(other)))


def false_condition(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each condition of a Device that is False; one for all nodes whose cards a driver lists."""
    listed: dict[str, list[str]] = {}
    for device in facts.all_of("devices"):
        for shown in (device.get("status") or {}).get("conditions") or ():
            kind = str(shown["type"]).partition(".")[0]
            if shown["status"] == "False" and (drivers := _only_listed_by(shown)):
                for driver in drivers:
                    listed.setdefault(driver, []).append(name_of(device))
            elif kind in REPORTED and shown["status"] == "False" and not _follows(shown, device):
                message = str(shown.get("message") or "")
                why = f"{shown['reason']}: {message}" if message else shown["reason"]
                yield Finding(
                    check="FalseCondition",
                    object=f"device/{name_of(device)}",
                    message=f"{shown['type']} is False ({why})",
                    fix=_fix_of_condition(kind, str(shown["reason"]), message, name_of(device), facts),
                )
    for driver, nodes in sorted(listed.items()):
        more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
        where = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''} ({', '.join(nodes[:SHOWN])}{more})"
        yield Finding(
            check="FalseCondition",
            object=f"driver/{driver}",
            message=f"{names.GIVEN_BY_NAME} is False on {where}: the driver lists cards for ResourceClaims, so Berth "
            "does not give them by name; right if another scheduler serves its pools",
            fix=f"helm upgrade berth charts/berth --reset-then-reuse-values --set-json 'claims.drivers=[\"{driver}\"]'"
            "   # with all that are Berth's, only if no other scheduler serves them",
        )


def _only_listed_by(found: Object) -> set[str]:
    """Return the drivers that list the cards that a condition withholds; none if it has another reason, too."""
    message = str(found.get("message") or "")
    is_other = found["type"] != names.GIVEN_BY_NAME or "device taint " in message
    return set() if is_other else set(device_text.LISTED.findall(message))


def _follows(found: Object, device: Object) -> bool:
    """Return whether a condition is False because of what is right, or of another one that is reported."""
    if found["type"] == names.INVENTORY_READ:
        return condition(device, names.DRIVER_LOADED).get("status") == "False"
    cards = (device.get("spec") or {}).get("devices") or ()
    return (found["type"], found["reason"]) == (names.DEVICES_OFFERED, "NoDevices") and all(
        card["type"] != names.GPU for card in cards
    )


def _fix_of_condition(kind: str, reason: str, message: str, node: str, facts: Facts) -> str:
    if kind == names.RESOURCES_WRITTEN:
        if reason == "RefusedByPolicy":
            value = "operator.pluginResources='[\"example.com/npu\"]'"
            upgrade = f"helm upgrade berth charts/berth --reset-then-reuse-values --set-json {value}"
            return f"{upgrade}   # with all that are summed"
        return f"kubectl logs -n {facts.installation.namespace} -l app.kubernetes.io/name=berth-operator --tail=50"
    if kind == names.HELD_ONCE:
        return f"kubectl get device {node} -o yaml   # delete all pods of the card but one"
    if kind == names.BOUND_BY_BERTH:
        return f"kubectl get device {node} -o yaml   # delete the pods, and let only Berth bind pods with such requests"
    if kind == names.DRIVER_LOADED:
        return f"nvidia-smi   # on {node}"
    if kind == names.ANNOTATIONS_READ:
        return f"kubectl edit device {node}   # correct or remove the annotation"
    if reason == "PartitionsRefused" and "of this vendor" in message:
        return f"kubectl label node {node} {names.PARTITIONS_KEY}-"
    if reason == "CardsRefused":
        return f"kubectl label node {node} {names.CARDS_KEY}-   # or write what is meant"
    if reason == "SharesRefused" and "of this vendor" in message:
        return f"kubectl label node {node} {names.CARDS_KEY}={names.CARDS_BY_CLAIMS} --overwrite"
    if reason == "PartitionsRefused" and "(--dra-partitions)" in message:
        values = "--set agent.devicePlugin=true --set dra.partitions.enabled=true"
        # A claim that has a partition is released by the process alone.
        otherwise = f"   # or remove the label {names.PARTITIONS_KEY}" if "has no effect" in message else ""
        return f"helm upgrade berth charts/berth --reset-then-reuse-values {values}{otherwise}"
    if kind in (names.WRITES_ACCEPTED, names.INVENTORY_READ, names.DEVICES_OFFERED, names.CLAIMS_SERVED):
        return pods_of_agent(facts, node)
    return f"kubectl get device {node} -o yaml"
