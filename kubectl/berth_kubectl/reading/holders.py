"""Holder rows from pods and their allocation annotations, in the form of the visibility API."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from berth_api import allocation, names, resources
from berth_api.allocation import AllocationError, Grant, held
from berth_api.objects.visibility import Amounts, Exceeding, HeldPart, HoldingPod
from berth_api.request import isolation
from berth_kubectl.reading import fleet
from berth_kubectl.reading.objects import Object, condition, key_of, name_of, owner_of, time_of

Key = tuple[str, str]
Models = Mapping[str, str]
"""Id of a card -> its model."""


def rows(
    pods: Iterable[Object], *, devices: Iterable[Object] = (), gpu_pods: Iterable[Object] = ()
) -> list[HoldingPod]:
    """Return a row for each pod that holds devices, ordered by namespace and name.

    Models come from Devices, or from the GpuPods where those may not be read.
    """
    listed, read = list(gpu_pods), list(devices)
    models = {**_models_of_gpu_pods(listed), **dict(_models(read))}
    subdevices, exceeding = dict(_subdevices(read)), _exceeding(read)
    drifted = {key_of(each) for each in listed if condition(each, names.CONSISTENT).get("status") == "False"}
    found = (_row(pod, models, subdevices, drifted, exceeding) for pod in sorted(pods, key=key_of))
    return [row for row in found if row is not None]


def _row(
    pod: Object,
    models: Models,
    subdevices: Mapping[str, Amounts],
    drifted: set[Key],
    exceeding: Mapping[Key, list[Exceeding]],
) -> HoldingPod | None:
    annotation = (pod["metadata"].get("annotations") or {}).get(names.ALLOCATED, "")
    node = pod["spec"].get("nodeName", "")
    if not annotation or not node:
        return None
    try:
        grants = allocation.parse(annotation)
    except AllocationError:
        grants = ()
    metadata = pod["metadata"]
    return {
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "node": node,
        "owner": owner_of(pod),
        "scheduler": pod["spec"].get("schedulerName", ""),
        "since": str(condition(pod, "PodScheduled").get("lastTransitionTime", "")),
        "endsBy": _ends_by(pod),
        "devices": [_part(grant, models, subdevices) for grant in grants],
        "drifted": key_of(pod) in drifted,
        "promised": False,
        "isolation": isolation.given(resources.total(pod["spec"])),
        "exceeding": exceeding.get((node, metadata["uid"]), []),
    }


def _exceeding(devices: Iterable[Object]) -> Mapping[Key, list[Exceeding]]:
    """Return what pods use above their shares, by their node and UID."""
    found: defaultdict[Key, list[Exceeding]] = defaultdict(list)
    for device in devices:
        for use in (device.get("status") or {}).get("exceeding") or ():
            bytes_ = fleet.amounts({name: use[name] for name in ("memory", "limit")})
            listed = found[name_of(device), use["podUID"]]
            listed.append(
                Exceeding(type=use["type"], minor=use["minor"], memory=bytes_["memory"], limit=bytes_["limit"])
            )
    return found


def _part(grant: Grant, models: Models, subdevices: Mapping[str, Amounts]) -> HeldPart:
    card = grant.parent or grant.visible
    part: HeldPart = {
        "type": grant.type,
        "minor": grant.minor,
        "id": grant.id,
        "model": models.get(card, ""),
        "amounts": dict(grant.amounts),
    }
    return {**part, "card": subdevices[card]} if grant.is_subdevice and card in subdevices else part


def _ends_by(pod: Object) -> str:
    """Return when kubelet ends the pod because of its `activeDeadlineSeconds`."""
    seconds, start = pod["spec"].get("activeDeadlineSeconds"), time_of((pod.get("status") or {}).get("startTime", ""))
    if seconds is None or start is None:
        return ""
    return (start + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _models(devices: Iterable[Object]) -> Iterator[tuple[str, str]]:
    for device in devices:
        for card in (device.get("spec") or {}).get("devices") or ():
            yield from ((each, card.get("model") or "") for each in (card["id"], *_instances(card)))


def _subdevices(devices: Iterable[Object]) -> Iterator[tuple[str, Amounts]]:
    """Yield (id of a card or instance, the instances or replicas of the card)."""
    for device in devices:
        for card in (device.get("spec") or {}).get("devices") or ():
            if there := held.subdevices(fleet.total(card)):
                yield from ((each, there) for each in (card["id"], *_instances(card)))


def _instances(card: Object) -> Iterator[str]:
    yield from (each["id"] for each in (card.get("mig") or {}).get("instances") or ())


def _models_of_gpu_pods(gpu_pods: Iterable[Object]) -> Mapping[str, str]:
    cards = (card for each in gpu_pods for card in (each.get("spec") or {}).get("cards") or ())
    return {card["id"]: card.get("model") or "" for card in cards}
