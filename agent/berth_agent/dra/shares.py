"""Shares of whole cards by claim: how slices list the cards, and what containers get. Pure functions, but one.

The scheduler allocates a share as an amount of memory and cores of a card. A container reads its limits from variables,
and several CDI devices in one container overwrite each other's variables. So each CDI device has the variables of all
cards that its container gets, and the driver reads from the pods which container gets which.
"""

import re
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from berth_agent.dra.devices import ListedDevice
from berth_agent.vendor import RefusedError
from berth_api.names import DRA_DRIVER, GPU, RDMA
from berth_api.resources import quantity
from berth_client.lists import pages
from berth_client.objects import Object

MEMORY: Final = "memory"
CORES: Final = "cores"
WHOLE: Final = 100
"""Hundredths of a card's cores."""
MAX_OTHER_CLAIMS: Final = 32
MIB: Final = 1 << 20
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
"""A share ID that is safe in the name of a CDI device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of a card."""

    id: str
    """The scheduler's share ID."""
    memory: int
    """MiB."""
    cores: int
    """Hundredths; 0 if the claim requests none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container that gets devices of a claim."""

    title: str
    """The container in messages."""
    requests: frozenset[str] | None
    """The requests of the claim that it names; None for all."""
    other_claims: frozenset[str] = frozenset()
    other_devices: tuple[str, ...] = ()
    """The driver's devices of these claims."""


class ObjectReader(Protocol):
    """The API server."""

    def get(self, path: str, params: Mapping[str, str] | None = None) -> Coroutine[Any, Any, Object]:
        """Read an object, or a page of a list.

        Raises:
            CallError: it cannot be read.
        """
        ...


class ClaimedCard(Protocol):
    """A device of a prepared claim."""

    @property
    def request(self) -> str:
        """Its request."""
        ...

    @property
    def device(self) -> str:
        """Its name in the slice."""
        ...

    @property
    def type(self) -> str:
        """The type of its card."""
        ...

    @property
    def share(self) -> Share | None:
        """The share; None if the claim has the whole device."""
        ...


def read(result: Mapping[str, Any]) -> Share | None:
    """Return the share in a result of an allocation; None if it is a whole device.

    Raises:
        RefusedError: it is not a share of a card as slices list them.
    """
    consumed, share_id = result.get("consumedCapacity"), str(result.get("shareID") or "")
    if not consumed and not share_id:
        return None
    amounts = {MEMORY: "0", CORES: "0", **(consumed or {})}
    try:
        memory, rest = divmod(quantity.parse(amounts[MEMORY]), MIB)
        share = Share(id=share_id, memory=memory, cores=quantity.parse(amounts[CORES]))
    except ValueError as error:
        raise RefusedError(f"{result['device']}: its share cannot be read: {error}") from error
    if rest or share.memory <= 0 or share.cores < 0 or not _ID.fullmatch(share.id):
        amount = f"{share.id!r} with memory {amounts[MEMORY]} and cores {amounts[CORES]}"
        raise RefusedError(f"{result['device']}: {amount} is not a share in MiB and hundredths of the cores")
    return share


def is_divisible(device: ListedDevice) -> bool:
    """Return whether several claims may have shares of a device: a whole card with memory."""
    return device.type == GPU and device.id == device.card and mebibytes(device) > 0


def mebibytes(device: ListedDevice) -> int:
    """Return the memory of a device in whole MiB."""
    return quantity.parse(device.memory or 0) // MIB


def fields(device: ListedDevice) -> dict[str, Any]:
    """Return the fields of a slice's device that offer shares of a card.

    A claim that requests no memory gets all of it. So claims for whole cards get whole cards. Memory is rounded down to
    MiB, because the API server requires that the whole is a number of steps.
    """
    memory = f"{mebibytes(device)}Mi"
    return {
        "allowMultipleAllocations": True,
        "capacity": {
            MEMORY: {
                "value": memory,
                "requestPolicy": {"default": memory, "validRange": {"min": "1Mi", "max": memory, "step": "1Mi"}},
            },
            CORES: {
                "value": str(WHOLE),
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": str(WHOLE), "step": "1"}},
            },
        },
    }


def excess(wanted: Sequence[ClaimedCard], others: Iterable[ClaimedCard], listed: Mapping[str, ListedDevice]) -> str:
    """Return which card a claim's shares exceed, together with the shares of other claims; empty if none.

    A single share may be larger than its card: after a change of the driver, a card may report less memory.
    """
    memory, cores, count = Counter[str](), Counter[str](), Counter[str]()
    names = {device.device for device in wanted if device.share}
    for device in (*wanted, *others):
        if device.share and device.device in names:
            memory[device.device] += device.share.memory
            cores[device.device] += device.share.cores
            count[device.device] += 1
    for name in sorted(name for name in names if count[name] > 1):
        if memory[name] > (most := mebibytes(listed[name])):
            return f"the shares of {name} have {memory[name]}Mi of memory together; the card has {most}Mi"
        if cores[name] > WHOLE:
            return f"the shares of {name} have {cores[name]} hundredths of its cores together; the card has {WHOLE}"
    return ""


def containers(pods: Iterable[Mapping[str, Any]], claim: str) -> list[Container]:
    """Return the containers of pods that get devices of a claim in their namespace."""
    users = []
    for pod in pods:
        for container, references in _references(pod).items():
            requests = frozenset(request for name, request in references if name == claim)
            if requests:
                users.append(
                    Container(
                        title=f"container {container} of pod {pod['metadata']['name']}",
                        requests=None if "" in requests else requests,
                        other_claims=frozenset(name for name, _ in references if name != claim),
                    )
                )
    return users


async def users(api: ObjectReader, claim: Mapping[str, Any], *, node: str) -> list[Container]:
    """Return the containers on the node that get devices of a claim; none if its pods name it in no container.

    Raises:
        CallError: the API server does not say.
        RefusedError: no pod has the claim, or there are too many other claims to look at.
    """
    namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
    reserved = {user["uid"] for user in claim["status"].get("reservedFor") or ()}
    # Rights cannot be restricted to the pods of a node, so the agent may list pods, and not get them.
    path, found = f"/api/v1/namespaces/{namespace}/pods", list[Container]()
    has_claim = False
    async with aclosing(pages(partial(api.get, path), {"fieldSelector": f"spec.nodeName={node}"})) as fetched:
        async for page in fetched:
            pods = [pod for pod in page["items"] or () if pod["metadata"]["uid"] in reserved]
            # Kubernetes prepares the claims of a pod, whether a container names them or not.
            has_claim |= any(name in _claims(pod) for pod in pods)
            found += containers(pods, name)
            del page, pods  # as in `pages`
    if not has_claim:
        raise RefusedError(f"no pod on {node} for which ResourceClaim {namespace}/{name} is reserved requests it")
    others = sorted(frozenset[str]().union(*(container.other_claims for container in found)) - {""})
    if len(others) > MAX_OTHER_CLAIMS:
        raise RefusedError(f"its containers have {len(others)} other claims; allowed are {MAX_OTHER_CLAIMS}")
    devices: dict[str, list[str]] = {}
    for other in others:
        read = await api.get(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{other}")
        results = (((read.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
        devices[other] = [result["device"] for result in results if result["driver"] == DRA_DRIVER]
    return [
        replace(
            container,
            other_devices=tuple(
                device for other in others if other in container.other_claims for device in devices[other]
            ),
        )
        for container in found
    ]


def _claims(pod: Mapping[str, Any]) -> set[str]:
    """Return the names of a pod's claims."""
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return {*_names(pod).values(), extended.get("resourceClaimName") or ""}


def _names(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the claims in a pod's spec, by the pod's own names; empty for claims that are not made."""
    spec, status = pod["spec"], pod.get("status") or {}
    made = {entry["name"]: entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or ()}
    return {
        entry["name"]: entry.get("resourceClaimName") or made.get(entry["name"]) or ""
        for entry in spec.get("resourceClaims") or ()
    }


def _references(pod: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Return the claims of each container, with the request that it names, which is empty for all requests."""
    spec, status, names = pod["spec"], pod.get("status") or {}, _names(pod)
    references: dict[str, list[tuple[str, str]]] = {
        container["name"]: [
            (names.get(entry["name"], ""), entry.get("request") or "")
            for entry in (container.get("resources") or {}).get("claims") or ()
        ]
        for container in (*(spec.get("initContainers") or ()), *spec["containers"])
    }
    extended = status.get("extendedResourceClaimStatus") or {}
    for mapping in extended.get("requestMappings") or ():
        references.setdefault(mapping["containerName"], []).append(
            (extended.get("resourceClaimName") or "", mapping["requestName"])
        )
    return references


def variables(
    devices: Sequence[ClaimedCard], users: Iterable[Container], listed: Mapping[str, ListedDevice]
) -> list[list[str]]:
    """Return the variables of each device's CDI device, in the order of the devices; none for whole cards.

    They are the variables that containers with shares by name get for MPS and HAMi-core.

    Raises:
        RefusedError: a container would not know its numbers.
    """
    # What no container names yet, a pod that uses the claim later may: kubelet does not call the driver for it.
    result = [
        _of_container([share]) if (share := device.share) and _is_part(device, listed) else [] for device in devices
    ]
    groups: list[tuple[Container, list[int]]] = []
    first: dict[int, tuple[str, list[int]]] = {}
    conflicts: dict[int, str] = {}
    for user in users:
        group = [
            number
            for number, device in enumerate(devices)
            if device.type == GPU and (user.requests is None or device.request in user.requests)
        ]
        # CUDA counts the cards of a container by their buses.
        group.sort(key=lambda number: listed[devices[number].device].place)
        groups.append((user, group))
        for number in group:
            other, same = first.setdefault(number, (user.title, group))
            if same != group:
                conflicts[number] = f"{user.title} and {other} both have {devices[number].device}"
    for user, group in groups:
        if not any(_is_part(devices[number], listed) for number in group):
            continue
        _check(user, [devices[number] for number in group])
        for number in group:
            if number in conflicts:
                raise RefusedError(f"{conflicts[number]}, but different further cards, of which one is a share")
            result[number] = _of_container([share for at in group if (share := devices[at].share)])
    return result


def _is_part(device: ClaimedCard, listed: Mapping[str, ListedDevice]) -> bool:
    share = device.share
    return share is not None and (share.memory < mebibytes(listed[device.device]) or share.cores not in {0, WHOLE})


def _check(user: Container, cards: Sequence[ClaimedCard]) -> None:
    names = [card.device for card in cards]
    if twice := [name for name in names if names.count(name) > 1]:
        raise RefusedError(f"{user.title} has two shares of {twice[0]}, which it cannot distinguish: request one share")
    if exclusive := [card.device for card in cards if card.share is None]:
        raise RefusedError(f"{user.title} has a share, and {exclusive[0]}, which is not shared: use two containers")
    for name in user.other_devices:
        if not name.startswith(f"{RDMA}-"):
            raise RefusedError(f"{user.title} has a share, and {name} by another claim: request both in one claim")


def _of_container(shares: Sequence[Share]) -> list[str]:
    cores = min((share.cores for share in shares if share.cores), default=0)
    sizes = ",".join(f"{number}={share.memory}M" for number, share in enumerate(shares))
    return [
        *(f"CUDA_DEVICE_MEMORY_LIMIT_{number}={share.memory * MIB}" for number, share in enumerate(shares)),
        # HAMi-core treats 0 as no limit.
        f"CUDA_DEVICE_SM_LIMIT={cores}",
        f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={sizes}",
        f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={cores or WHOLE}",
    ]
