"""Holder rows from pods and their allocation annotations, in the form of the visibility API."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta

from berth_api import allocation, names, resources
from berth_api.allocation import AllocationError, held
from berth_api.objects.visibility import Amounts, Exceeding, HeldPart, HoldingPod
from berth_api.request import isolation
from berth_kubectl.reading import fleet
from berth_kubectl.reading.objects import Object, condition, key_of, name_of, owner_of, time_of

Key = tuple[str, str]


def rows(
    pods: Iterable[Object], *, devices: Iterable[Object] = (), gpu_pods: Iterable[Object] = ()
) -> list[HoldingPod]:
    """Return a row for each pod that holds devices, ordered by namespace and name.

    Models come from Devices, or from the GpuPods where those may not be read.
    """
    listed, read = list(gpu_pods), list(devices)
    models = {
        card["id"]: card.get("model") or ""
        for gpu_pod in listed
        for card in (gpu_pod.get("spec") or {}).get("cards") or ()
    }
    subdevices: dict[str, Amounts] = {}
    """Id of a card or instance -> the instances or replicas of the card."""
    exceeding: defaultdict[Key, list[Exceeding]] = defaultdict(list)
    """(node, UID of a pod) -> what it uses above its shares."""
    for device in read:
        for card in (device.get("spec") or {}).get("devices") or ():
            ids = [card["id"], *(instance["id"] for instance in (card.get("mig") or {}).get("instances") or ())]
            models |= dict.fromkeys(ids, card.get("model") or "")
            if there := held.subdevices(fleet.total(card)):
                subdevices |= dict.fromkeys(ids, there)
        for use in (device.get("status") or {}).get("exceeding") or ():
            bytes_ = fleet.amounts({name: use[name] for name in ("memory", "limit")})
            exceeding[name_of(device), use["podUID"]].append(
                Exceeding(type=use["type"], minor=use["minor"], memory=bytes_["memory"], limit=bytes_["limit"])
            )
    drifted = {key_of(gpu_pod) for gpu_pod in listed if condition(gpu_pod, names.CONSISTENT).get("status") == "False"}
    holding: list[HoldingPod] = []
    for pod in sorted(pods, key=key_of):
        annotation = (pod["metadata"].get("annotations") or {}).get(names.ALLOCATED, "")
        node = pod["spec"].get("nodeName", "")
        if not annotation or not node:
            continue
        try:
            grants = allocation.parse(annotation)
        except AllocationError:
            grants = ()
        parts = []
        for grant in grants:
            card = grant.parent or grant.visible
            part: HeldPart = {
                "type": grant.type,
                "minor": grant.minor,
                "id": grant.id,
                "model": models.get(card, ""),
                "amounts": dict(grant.amounts),
            }
            if grant.is_subdevice and card in subdevices:
                part["card"] = subdevices[card]
            parts.append(part)
        metadata, seconds = pod["metadata"], pod["spec"].get("activeDeadlineSeconds")
        start = time_of((pod.get("status") or {}).get("startTime", ""))
        holding.append(
            {
                "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
                "node": node,
                "owner": owner_of(pod),
                "scheduler": pod["spec"].get("schedulerName", ""),
                "since": str(condition(pod, "PodScheduled").get("lastTransitionTime", "")),
                # When kubelet ends the pod.
                "endsBy": (start + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
                if start is not None and seconds is not None
                else "",
                "devices": parts,
                "drifted": key_of(pod) in drifted,
                "promised": False,
                "isolation": isolation.given(resources.total(pod["spec"])),
                "exceeding": exceeding.get((node, metadata["uid"]), []),
            }
        )
    return holding
