"""What a Node shows of its devices: sums in capacity and allocatable, and labels.

When kubelet restarts, it admits the running pods again by these sums, and kills pods that no longer fit. So the sums
are the healthy cards plus what pods hold on other cards, and never less than the pods request. Decisions read the sums
as well as the cards, as kubelet does.
"""

import re
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from berth_api import names
from berth_api.allocation import mig, text
from berth_api.names import FPGA, GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED, MANAGED, RDMA
from berth_api.request import CARD, Kind
from berth_operator.core.fleet.claim_charges import is_of_claim
from berth_operator.core.fleet.kubelet_allocation import FOREIGN
from berth_operator.state.cache.views import NodeView

SUMMED: Final = (GPU, GPU_SHARED, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA, FPGA)
OURS: Final = tuple(prefix + name for prefix in (names.PREFIX, names.OTHER_PREFIX) for name in SUMMED)
"""The resource names that Berth always writes; plug-ins add others. No other names are changed."""


def wanted(view: NodeView) -> dict[str, int]:
    """Return the sums that the Node should show."""
    cards = view.device.inventory.cards if view.device else ()
    healthy = {(card.type, card.minor) for card in cards if card.healthy}
    counted = {*SUMMED, *view.kinds.names}
    totals: Counter[str] = Counter()
    for card in cards:
        if card.healthy:
            amounts = dict(card.amounts)
            if card.type == GPU:
                # A card has at most a hundred shares; this count must never be what limits them.
                amounts |= {GPU: amounts[GPU_CORE], GPU_SHARED: 100}
            totals.update({name: amount for name, amount in amounts.items() if name in counted})
    requested: Counter[str] = Counter()
    by_name: set[str] = set()
    for charge in view.charges:
        requested.update(dict(charge.resources))
        by_name.update(name for name, _ in charge.plugin_requests)
        if charge.pod == FOREIGN or is_of_claim(charge):
            continue  # kubelet does not count what others than pods hold, nor claims, in these resources
        for grant in charge.grants:
            amounts = dict(grant.amounts)
            if (grant.type, grant.minor) in healthy or any(map(mig.is_resource, amounts)):
                continue  # the sums leave out cards in MIG mode
            if grant.type == GPU:
                amounts |= {GPU: amounts.get(GPU_CORE, 0), GPU_SHARED: 1}
            totals.update({name: amount for name, amount in amounts.items() if name in counted})
    for kind in view.kinds.added:
        # Their amounts are hundredths of a device.
        totals.update({name: totals[kind.name] * whole // CARD for name, whole in kind.resources.items()})
    ours = (*OURS, *(name for kind in plugin_kinds(view) for name in kind.resources))
    # What pods have by class alone is of no device plugin, so that kubelet does not count it.
    shown = [name for name in ours if totals[_base(name)] or name in by_name]
    return {name: amount for name in shown if (amount := max(totals[_base(name)], requested[name]))}


def plugin_kinds(view: NodeView) -> tuple[Kind, ...]:
    """Return the types of plug-ins whose resources Berth writes."""
    return tuple(kind for kind in view.kinds.added if kind.summed)


def _base(name: str) -> str:
    return name.partition("/")[2] if name in OURS else name


def status_patch(view: NodeView, ours: Collection[str] = OURS) -> dict[str, Any] | None:
    """Return the merge patch of some resources in the Node's capacity and allocatable; None if they are up to date."""
    if view.node is None or not (view.device or MANAGED in view.node.info.labels):
        return None
    sums = {name: amount for name, amount in wanted(view).items() if name in ours}
    shown = (view.node.capacity, view.node.allocatable)
    if all({name: amounts[name] for name in ours if name in amounts} == sums for amounts in shown):
        return None
    values = {name: text(_base(name), sums[name]) if name in sums else None for name in ours}
    known = set(sums).union(*shown)
    kept = {name: value for name, value in values.items() if name in known}
    return {"status": {"capacity": kept, "allocatable": kept}}


def label_patch(view: NodeView) -> dict[str, Any] | None:
    """Return the merge patch of the Node's labels; None if they are up to date."""
    if view.node is None or not (view.device or MANAGED in view.node.info.labels):
        return None
    shown = view.node.info.labels
    if view.device is None:
        # Without a Device the label stays as long as the sums do, so that they are removed even after a restart.
        desired = {MANAGED: "false"} if wanted(view) else {}
    else:
        models = Counter(_safe(card.model) for card in view.device.inventory.cards if card.type == GPU)
        desired = {MANAGED: "true"}
        desired |= {names.MODEL_PREFIX + model: str(count) for model, count in models.items() if model}
        if models:
            desired |= {names.VENDOR_LABEL: _safe(view.device.inventory.vendor)}
            desired |= {names.DRIVER_LABEL: _safe(view.device.driver_version)} if view.device.driver_version else {}
        if len(models) == 1 and (model := next(iter(models))):
            desired |= {names.MODEL_LABEL: model}
    ours = [name for name in shown if name.startswith(names.MODEL_PREFIX)]
    ours += [MANAGED, names.VENDOR_LABEL, names.MODEL_LABEL, names.DRIVER_LABEL] if MANAGED in shown else []
    changes: dict[str, str | None] = {name: None for name in ours if name in shown and name not in desired}
    changes |= {name: value for name, value in desired.items() if shown.get(name) != value}
    return {"metadata": {"labels": changes}} if changes else None


def _safe(value: str) -> str:
    """Return a text as a valid label value."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", value)[:63].strip("-._")
