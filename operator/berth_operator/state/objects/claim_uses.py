"""The ResourceClaims that pods use, parsed from the API."""

from collections.abc import Mapping
from typing import Any

from berth_operator.core.values.pod_claims import ClaimUse
from berth_operator.state.objects import pod_limits

Object = Mapping[str, Any]


def of_pod(pod: Object) -> tuple[ClaimUse, ...]:
    """Read the claims that a pod uses, without those of templates for which none is needed."""
    listed = (pod["spec"].get("resourceClaims") or ())[: pod_limits.MAX_RESOURCE_CLAIMS]
    uses = (_use(pod, each) for each in listed)
    # A claim may be used under several names.
    return tuple(dict.fromkeys(each for each in uses if each is not None))


def _use(pod: Object, listed: Object) -> ClaimUse | None:
    metadata = pod["metadata"]
    if name := listed.get("resourceClaimName"):
        return ClaimUse(claim=f"{metadata['namespace']}/{name}")
    key = f"{metadata['namespace']}/{metadata['name']}"
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    made = next((each for each in statuses if each["name"] == listed.get("name")), None)
    if made is None:
        return ClaimUse(claim="", owner=metadata["uid"], pod=key)
    if not (name := made.get("resourceClaimName")):
        return None
    return ClaimUse(claim=f"{metadata['namespace']}/{name}", owner=metadata["uid"], pod=key)
