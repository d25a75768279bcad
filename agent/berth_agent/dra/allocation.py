"""What a scheduler allocated to a ResourceClaim, as a driver reads it. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth_agent.dra import shares
from berth_agent.dra.shares import Share
from berth_agent.vendor import RefusedError
from berth_api.names import DRA_DRIVER

INSTEAD: Final = (
    "To share a card, request a part of its capacity (docs/tasks/shares-by-claim.md); "
    "with MPS, request a share by name (docs/tasks/limits.md)"
)
MAX_KIND: Final = 64
"""Characters of a kind in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedDevice:
    """A device of this driver that a claim has."""

    request: str
    """The request, without its subrequest: kubelet knows it by this name."""
    device: str
    admin: bool = False
    """Whether the claim has admin access: other claims may have the device, too."""
    share: Share | None = None
    """The claim's share of the device; None for the whole device."""


def path(namespace: str, name: str) -> str:
    """Return the path of a claim on the API server."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


def read(claim: Mapping[str, Any], *, uid: str, pool: str) -> tuple[AllocatedDevice, ...]:
    """Return the devices of a claim.

    Args:
        claim: the claim, as the API server has it.
        uid: the UID of the claim that kubelet means.
        pool: the pool of this node.

    Raises:
        RefusedError: it is another claim, or none of its devices is of this node and driver, or a share cannot be read.
    """
    return tuple(
        AllocatedDevice(
            request=result["request"].partition("/")[0],
            device=result["device"],
            admin=bool(result.get("adminAccess")),
            # Admin access takes nothing of a card, whatever the scheduler wrote.
            share=None if result.get("adminAccess") else shares.read(result),
        )
        for result in own_results(claim, uid=uid, pool=pool)
    )


def unserved_parameters(claim: Mapping[str, Any]) -> str:
    """Return which parameters for this driver an allocated claim has, and what to do; empty if it has none.

    The driver has no parameters. What they request, such as MPS, a container would miss without a word.
    """
    devices = claim["status"]["allocation"].get("devices") or {}
    own = {result["request"] for result in devices.get("results") or () if result["driver"] == DRA_DRIVER}
    # A configuration may name a request, or one of its alternatives.
    own |= {request.partition("/")[0] for request in own}
    for config in devices.get("config") or ():
        opaque = config.get("opaque") or {}
        if opaque.get("driver") == DRA_DRIVER and (not config.get("requests") or own.intersection(config["requests"])):
            is_of_class = config.get("source") == "FromClass"
            place = "spec.config of its DeviceClass" if is_of_class else "spec.devices.config"
            kind = _kind(opaque.get("parameters"))
            return f"{place} has parameters{kind} for {DRA_DRIVER}, which takes none: remove them. {INSTEAD}"
    return ""


def _kind(parameters: object) -> str:
    """Return the kind of parameters, quoted for a message; empty if they name none."""
    kind = parameters.get("kind") if isinstance(parameters, Mapping) else None
    return f" {kind[:MAX_KIND]!r}" if isinstance(kind, str) and kind else ""


def own_results(claim: Mapping[str, Any], *, uid: str, pool: str) -> list[Mapping[str, Any]]:
    """Return the results of a claim's allocation that are of this driver; see `read`.

    Raises:
        RefusedError: it is another claim, or none of its devices is of this node and driver.
    """
    name = claim["metadata"]["name"]
    if claim["metadata"]["uid"] != uid:
        raise RefusedError(f"ResourceClaim {name} has the UID {claim['metadata']['uid']}, not {uid}: it was replaced")
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise RefusedError(f"ResourceClaim {name} is not allocated")
    results = (allocation.get("devices") or {}).get("results") or ()
    own = [result for result in results if result["driver"] == DRA_DRIVER]
    if not own or any(result["pool"] != pool for result in own):
        pools = ", ".join(sorted({result["pool"] for result in own})) or "no pool"
        raise RefusedError(f"ResourceClaim {name} has devices of {DRA_DRIVER} in {pools}; this node's pool is {pool}")
    return own
