"""Vendors whose cards Berth shows, but gives only to some pods or to none: their device plugins need more than kubelet.

A card is given if its vendor's plugin finds the scheduler's choice on the pod, or if the agent is the plugin.
"""

from collections.abc import Mapping
from typing import Final

from berth_api.request import NPU_CORE, Kinds
from berth_operator.core.values.inventory import Bar

HUAWEI: Final = "huawei"
"""Its plugin reads annotations of the pod (`decision.record`). Kubelet calls it only for Huawei's own resources."""
LOCKS: Final[Mapping[str, str]] = {"cambricon": "cambricon.com/dsmlu.lock", "metax": "hami.io/mutex.lock"}
"""Vendor -> the annotation by which its plugin expects that a scheduler locks the Node while one pod starts."""
WITHOUT_PLUGIN: Final = frozenset({"baidu", "kunlun", "kunlunxin"})
"""Names of the vendor of Kunlun's cards. Koordinator lists them too, without an adapter for a plugin."""
OTHER_ANNOTATION: Final = "Ascend-310P3-300I-DUO"
"""The model of Huawei's for which the plugin reads another annotation, whose form depends on the model."""


def own_resources(kinds: Kinds) -> Mapping[str, str]:
    """Return the resource of each vendor whose cards pods get only by the vendor's resources, by the vendor's name.

    For pods with other resources, kubelet would not call the vendor's device plugin.
    """
    return {HUAWEI: NPU_CORE, **{vendor.name: vendor.cards[0] for vendor in kinds.gpus.values() if not vendor.shared}}


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
