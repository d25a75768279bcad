"""Add tolerations for the taints of nodes with devices to pods that request devices.

The API server's plug-in ExtendedResourceToleration tolerates a taint only in pods that request the resource of the same
name. So pods with other names of devices would wait. `manifests/base/injection.yaml` has the same rule in CEL.
"""

import re
from collections.abc import Collection
from typing import Final

from berth_api.admission.injection import Object, all_containers, annotations_of, labels_of, requests_any, seeing_of

DEVICES: Final = re.compile(
    r"(kubernetes\.io|koordinator\.sh)/(gpu([.-].*)?|rdma|fpga)|nvidia\.com/(gpu(\.shared)?|mig-.+)"
    r"|amd\.com/.+|dcu\.com/gpu|huawei\.com/npu-.+"
)
"""Names of resources of devices that Berth serves, without those of device plug-ins."""


def tolerating(pod: Object, keys: Collection[str], renamed: Collection[str] = ()) -> Object:
    """Return a new pod that tolerates taints with these keys and the effect NoSchedule, if it requests devices.

    `renamed` are resources to which NVIDIA's device plugin has given other names.
    """
    spec = pod["spec"]
    existing = spec.get("tolerations") or ()
    missing = [key for key in keys if not any(_tolerates(toleration, key) for toleration in existing)]
    if not missing or not _requests_devices(pod, renamed):
        return pod
    added = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in missing]
    return {**pod, "spec": {**spec, "tolerations": [*existing, *added]}}


def _requests_devices(pod: Object, renamed: Collection[str]) -> bool:
    def is_device(name: str) -> bool:
        return DEVICES.fullmatch(name) is not None or name in renamed

    spec = pod["spec"]
    if any(requests_any(container, is_device) for _, _, container in all_containers(spec)):
        return True
    return bool(seeing_of(spec, labels_of(pod), annotations_of(pod)))


def _tolerates(toleration: Object, key: str) -> bool:
    """Return whether a toleration is for every value of the key with the effect."""
    is_for_all = toleration.get("operator") == "Exists" and toleration.get("effect", "") in ("", "NoSchedule")
    return is_for_all and toleration.get("key", "") in ("", key)
