"""The ResourceClaims that pods use, parsed from the API."""

from collections.abc import Mapping
from typing import Any

from berth_api.values import keys
from berth_operator.core.values.pod_claims import ClaimUse
from berth_operator.state.objects import pod_limits

Object = Mapping[str, Any]


def of_pod(pod: Object) -> tuple[ClaimUse, ...]:
    """Read the claims that a pod uses, without claims that Kubernetes need not make from templates."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    key = keys.of(pod)
    made = {claim["name"]: claim.get("resourceClaimName") for claim in status.get("resourceClaimStatuses") or ()}
    uses: list[ClaimUse] = []
    for listed in (pod["spec"].get("resourceClaims") or ())[: pod_limits.MAX_RESOURCE_CLAIMS]:
        if name := listed.get("resourceClaimName"):
            uses.append(ClaimUse(claim=f"{metadata['namespace']}/{name}"))
        elif listed.get("name") not in made:
            template = str(listed.get("resourceClaimTemplateName") or "")
            uses.append(ClaimUse(claim="", owner=metadata["uid"], pod=key, template=template))
        elif name := made[listed.get("name")]:
            uses.append(ClaimUse(claim=f"{metadata['namespace']}/{name}", owner=metadata["uid"], pod=key))
    # A claim may be used under several names.
    return tuple(dict.fromkeys(uses))
