"""Vendors whose cards Berth shows, but gives only to some pods or to none: their device plugins need more than kubelet.

A card is given if its vendor's plugin finds the scheduler's choice on the pod, or if the agent is the plugin.
"""

from collections.abc import Mapping
from typing import Final

from berth_api.request import AMD_GPU, DCU_GPU, NPU_CORE, NVIDIA_GPU, Kinds
from berth_api.request.kinds import ALL_VENDORS, HUAWEI
from berth_operator.core.values.inventory import ANY_VENDOR, Bar

LOCKS: Final[Mapping[str, str]] = {"cambricon": "cambricon.com/dsmlu.lock", "metax": "hami.io/mutex.lock"}
"""Vendor -> the annotation by which its plugin expects that a scheduler locks the Node while one pod starts."""
WITHOUT_PLUGIN: Final = frozenset({"baidu", "kunlun", "kunlunxin"})
"""Names of the vendor of Kunlun's cards. Koordinator lists them too, without an adapter for a plugin."""
OTHER_ANNOTATION: Final = "Ascend-310P3-300I-DUO"
"""The model of Huawei's for which the plugin reads another annotation, whose form depends on the model."""


_NAMES: Final = {"nvidia": "NVIDIA", "amd": "AMD", "hygon": "Hygon", HUAWEI: "Huawei"}
_CARDS: Final = {"nvidia": NVIDIA_GPU, "amd": AMD_GPU, "hygon": DCU_GPU, HUAWEI: NPU_CORE}
"""Vendor -> the resource by which pods request its cards."""


def gives_shares(vendor: str, kinds: Kinds) -> bool:
    """Return whether pods get a vendor's GPUs, and shares of them, by Berth's resources, such as `kubernetes.io/gpu`.

    Kubelet calls no device plugin for these resources, so something else must give containers the cards.
    """
    if vendor in LOCKS or vendor in WITHOUT_PLUGIN:
        # `bar` has a better reason, because no resource helps.
        return True
    added = [one.shared for one in kinds.gpus.values() if one.name == vendor]
    if added or vendor in (HUAWEI, ANY_VENDOR):
        return vendor != HUAWEI and all(added)
    return not kinds.gpu_vendors.isdisjoint((vendor, ALL_VENDORS))


def title(vendor: str) -> str:
    """Return a vendor's name for messages: `AMD` for `amd`."""
    return _NAMES.get(vendor, vendor)


def resource_of(vendor: str, kinds: Kinds) -> str:
    """Return the resource by which pods request a vendor's cards; empty if none is known."""
    return _CARDS.get(vendor) or next((name for name, one in kinds.gpus.items() if one.name == vendor), "")


def bar(vendor: str, model: str) -> Bar | None:
    """Return why no card of this vendor and model is given; None if cards are."""
    if lock := LOCKS.get(vendor):
        return Bar(
            reason=f"the device plugin of {vendor} needs a lock on the node",
            detail=f"the device plugin of {vendor} needs the annotation {lock} on the Node while a pod starts, which "
            "Berth does not write; let the vendor's scheduler bind pods for these cards",
        )
    if vendor in WITHOUT_PLUGIN:
        return Bar(
            reason=f"Berth knows no device plugin of {vendor}",
            detail=f"Berth knows no device plugin of {vendor} that takes a scheduler's choice; let another scheduler "
            "bind pods for these cards",
        )
    if vendor == HUAWEI and model == OTHER_ANNOTATION:
        return Bar(
            reason=f"Berth does not support {model}",
            detail=f"the device plugin of {vendor} needs another annotation for {model}, which Berth does not write",
        )
    return None
