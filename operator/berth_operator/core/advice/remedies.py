"""Changes that end the wait of a pod. Every answer about a waiting pod comes from here.

    of_pod(what_ifs, pod)  ->  Remedy, None, ...

Each remedy is one change of the cluster. The filters of the decision find it, and a what-if of the whole decision tests
it (`assumptions`). A remedy records whether the change ends the wait if nothing else changes, and what was assumed. For
example, if a node like node-3 does not help, a node with another label may still help. The generator yields None where
a caller may do other work, because each what-if takes as long as a few decisions.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from berth_api.names import CARDS_BY_CLAIMS, CARDS_KEY, DRA_DRIVER
from berth_api.objects.visibility import ClaimDevices, LackingNode
from berth_api.request import Kinds, is_device
from berth_api.resources import PODS
from berth_operator.core.advice import claim_devices, lacking, new_nodes
from berth_operator.core.advice.assumptions import (
    Assumption,
    ChangedNode,
    FreeCards,
    Gone,
    Healthy,
    NewNode,
    Reporting,
    WhatIfs,
)
from berth_operator.core.decision import cycle
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.reservation_note import amounts_text, holders
from berth_operator.core.filters import (
    cordon,
    dynamic_resources,
    namespace_limits,
    node_affinity,
    node_ready,
    node_selector,
    resource_claims,
    resources,
    supported,
    taints,
    volume_claims,
    volume_in_use,
)
from berth_operator.core.filters.devices import DeviceFilter
from berth_operator.core.fleet import claim_counts
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.dependence import depends_on
from berth_operator.core.values.mounts import Mounts
from berth_operator.core.values.request import PendingPod, Taint, Toleration
from berth_operator.core.values.verdict import Verdict

MAX_NODES: Final = 2
"""Nodes that are tried for each kind of change but the end of pods."""
MAX_CROWDS: Final = 5
"""Nodes on which the search looks for pods that must end."""
MAX_PODS: Final = 24
"""The maximum number of pods of a node among which the pods that must end are searched. Each takes a decision."""
MAX_NOMINEES: Final = 8
MAX_FAILED: Final = 16
"""The maximum number of failed cards of a node among which those are searched that must recover."""
GIVEN_POOLS: Final = (
    "the pools of its ResourceClaims in claims.drivers or claims.pools of Berth's configuration (for the DeviceClass "
    f"{DRA_DRIVER}: the chart's dra.enabled, {DRA_DRIVER} in claims.drivers, and a node with the label "
    f"{CARDS_KEY}={CARDS_BY_CLAIMS})"
)
"""What ends the wait of a pod with ResourceClaims if Berth has no pools."""


class RemedyKind(enum.StrEnum):
    """What has to happen."""

    MEMBER = "Member"
    """Members of the pod's gang are created."""
    CLAIM = "Claim"
    """An object that the pod names is created or bound: a claim, a volume, a PodGroup."""
    LABEL = "Label"
    """A node gets labels, or a node with them is added."""
    NEW_NODE = "NewNode"
    """A node is added."""
    CAPACITY = "Capacity"
    """A node has more of a resource, or cards become free."""
    END = "End"
    """Pods end, or capacity kept for another pod is given up."""
    PREEMPTION = "Preemption"
    """Pods of lower priority are evicted, which the operator does by itself."""
    ADMINISTRATOR = "Administrator"
    """Someone repairs, uncordons or untaints a node, or creates the pod again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change, and whether it ends the wait if nothing else changes."""

    kind: RemedyKind
    ends: bool | None
    """None for a change that is necessary, but does not suffice or is not known to."""
    what: str
    """The change, as the subject of a sentence; a whole sentence if it concerns the pod."""
    node: str = ""
    """The node that changes, or that the new node is like."""
    is_new: bool = False
    """Whether it is a node to be added."""
    is_another: bool = False
    """Whether it is another node like an existing node, without a difference."""
    is_of_pod: bool = False
    """Whether only another pod would do, so that waiting is in vain."""
    assumes: Assumption | None = None
    """The assumption; None if it does not concern nodes and placed pods."""

    @property
    def sentence(self) -> str:
        """Return the answer."""
        if self.is_of_pod or (self.kind is RemedyKind.PREEMPTION and self.ends is None):
            return self.what
        if self.ends is None:
            return f"needed first: {self.what}"
        return f"{self.what} would end the wait" if self.ends else f"{self.what} would not help"


def is_in_vain(remedies: Sequence[Remedy]) -> bool:
    """Return whether no change of the cluster can end the wait: the pod itself cannot be placed."""
    return any(remedy.is_of_pod for remedy in remedies)


def of_pod(
    what_ifs: WhatIfs,
    pod: PendingPod,
    policy: Policy,
    placed: Sequence[Charge] = (),
    found: ClaimDevices | None = None,
) -> Iterator[Remedy | None]:
    """Yield what ends the wait of a pod that fits nowhere, or of its gang.

    `pod` is the pod without a node. `placed` are the charges of its gang's other members. `found` is what the search
    for its ResourceClaims returned.

    Raises:
        PluginFailedError: a plug-in failed.
    """
    if pod.error:
        yield _again(f"its request is invalid: {pod.error}")
        return
    refusing = cycle.refusing(what_ifs.fleet, pod.request, policy.filters_of(pod.request))
    if refusing is not None:
        if refusing.NAME == supported.NAME and not pod.request.unsupported:
            yield Remedy(kind=RemedyKind.ADMINISTRATOR, ends=None, what=GIVEN_POOLS)
            return
        [(reason, _)] = refusing.reasons(what_ifs.fleet, pod.request, what_ifs.fleet.present)
        yield _again(reason)
        return
    search = _Search(what_ifs, pod, policy, placed)
    yield None
    yield from (*search.limits(), *search.claims(), *search.resource_claims(found)) or search.all()


def of_members(what_ifs: WhatIfs, gang: Gang, pod: PendingPod) -> tuple[Remedy, ...]:
    """Return what ends the wait of a gang with too few members."""
    missing = gang.needed - gang.size
    more = f"{missing} more member{'s' if missing > 1 else ''} of {gang.key}"
    there = f"{gang.placed + gang.size} of {gang.minimum} exist"
    further = (replace(pod, uid=f"{pod.uid}/{number}", name=f"{pod.name}/{number}") for number in range(missing))
    if what_ifs.ends(unit=replace(gang, members=(*gang.members, *further))):
        return (Remedy(kind=RemedyKind.MEMBER, ends=True, what=f"{more} like {pod.name} ({there})"),)
    return (
        Remedy(kind=RemedyKind.MEMBER, ends=None, what=f"{more} ({there}; members like {pod.name} would not fit now)"),
    )


def of_group(problem: str) -> tuple[Remedy, ...]:
    """Return what ends the wait of a gang that cannot be decided because of its PodGroup, annotations or members."""
    return (Remedy(kind=RemedyKind.CLAIM, ends=None, what=f"a pod group that can be decided ({problem})"),)


def of_preemption(node: str, victims: int) -> tuple[Remedy, ...]:
    """Return that the operator will evict pods for the pod."""
    what = f"the eviction of {victims} pod(s) of lower priority on {node}"
    return (Remedy(kind=RemedyKind.PREEMPTION, ends=True, what=what, node=node),)


def of_unfinished() -> Remedy:
    """Return that changes may end the wait of a gang although none was found."""
    what = "changes after which pods would be evicted are not all known: the search for victims ended at its bound"
    return Remedy(kind=RemedyKind.PREEMPTION, ends=None, what=what)


def _again(why: str) -> Remedy:
    what = f"only a corrected pod, created again, can be placed ({why})"
    return Remedy(kind=RemedyKind.ADMINISTRATOR, ends=True, what=what, is_of_pod=True)


class _Search:
    """Searches the changes that end the wait of one pod."""

    def __init__(self, what_ifs: WhatIfs, pod: PendingPod, policy: Policy, placed: Sequence[Charge]) -> None:
        self._what_ifs, self._pod, self._policy = what_ifs, pod, policy
        self._fleet, self._request = what_ifs.fleet, pod.request
        self._order = policy.filters_of(pod.request)
        for charge in placed:
            self._fleet.charge(charge)
        try:
            with cycle.above_nominees(self._fleet, pod):
                self._rejected = {
                    filter_.NAME: self._fleet.present & ~filter_.passes(self._fleet, self._request)
                    for filter_ in self._order
                }
                only_local = self._only({filter_.NAME for filter_ in policy.local})
                self._near = lacking.ranked(self._fleet, self._request, only_local)[:MAX_CROWDS]
                near = self._near[:MAX_NODES].tolist()
                self._lacks = [lacking.lack(self._fleet, row, self._request, policy) for row in near]
        finally:
            for charge in placed:
                self._fleet.release(charge.uid)

    def all(self) -> Iterator[Remedy | None]:
        """Yield the remedies, in the order in which they are shown."""
        for search in (
            self._new_nodes,
            self._labels,
            self._volumes,
            self._administrator,
            self._health,
            self._capacity,
            self._ends_of_pods,
            self._nominees,
        ):
            yield from search()
            yield None

    def limits(self) -> Iterator[Remedy]:
        """Yield the limits that the namespace exceeds with this pod alone on each node, if there are any."""
        fits = namespace_limits.could_pass(self._fleet, self._request)
        if fits is self._fleet.present or (fits & self._fleet.present).any() or not self._fleet.present.any():
            return
        reasons = namespace_limits.reasons(self._fleet, self._request, self._fleet.present)
        reason = next(text for text, rows in reasons if rows.any())
        what = f"other namespaceLimits in Berth's configuration ({reason})"
        yield Remedy(kind=RemedyKind.ADMINISTRATOR, ends=None, what=what)

    def claims(self) -> Iterator[Remedy]:
        """Yield the claims without which no node takes the pod, if there are any."""
        missing = []
        for use in self._request.mounts.claims:
            alone = replace(self._request, mounts=Mounts(claims=(use,)))
            if volume_claims.passes(self._fleet, alone) is not self._fleet.present:
                missing.append(use)
        if not missing:
            return
        listed = " and ".join(f'"{use.claim.partition("/")[2]}"' for use in missing)
        plural = "s" if len(missing) > 1 else ""
        bound = "bound to volumes" if plural else "bound to a volume"
        what = f"PersistentVolumeClaim{plural} {listed}, {bound} that every node reaches"
        left = tuple(use for use in self._request.mounts.claims if use not in missing)
        ends = self._what_ifs.ends(unit=self._changed(mounts=replace(self._request.mounts, claims=left)))
        yield Remedy(kind=RemedyKind.CLAIM, ends=ends or None, what=what)
        yield Remedy(kind=RemedyKind.NEW_NODE, ends=False, what="a new node, whatever it has,", is_new=True)

    def resource_claims(self, found: ClaimDevices | None) -> Iterator[Remedy]:
        """Yield the ResourceClaims that cannot be used, or the devices that none of the nodes has for them."""
        rejected = self._rejected.get(resource_claims.NAME)
        if rejected is not None and rejected.any():
            reason = resource_claims.problem(self._fleet, self._request)
            yield Remedy(kind=RemedyKind.CLAIM, ends=None, what=f"ResourceClaims that can be used ({reason})")
            yield Remedy(kind=RemedyKind.NEW_NODE, ends=False, what="a new node, whatever it has,", is_new=True)
        if found is None:
            return
        # Nodes that were not compared may have the devices.
        alone = self._only({dynamic_resources.NAME})
        compared = alone if alone.any() else self._rejected[dynamic_resources.NAME]
        possible = claim_counts.rows_with_possible_devices(self._fleet, self._request)
        if (possible & self._fleet.present & ~compared).any():
            return
        for request in claim_devices.impossible(found):
            # The devices that no node has for the request, and what leaves out the most.
            needed, matching, causes = request["needed"], request["matching"], request["leftOut"]
            number = f"{needed} device{'s' if needed > 1 else ''}" if needed else "devices"
            most = f"at most {matching} match{'' if matching > 1 else 'es'}" if matching else "none match"
            first = next((cause for cause in causes if cause["selector"]), causes[0] if causes else None)
            left_out = (
                "" if first is None else f", and {first['devices']} of {request['devices']} are those {first['why']}"
            )
            where = f"request {request['request']} of {request['claim']} ({most} there, free or not{left_out})"
            yield Remedy(kind=RemedyKind.CLAIM, ends=None, what=f"{number} on one node for {where}")

    # --- masks --------------------------------------------------------------------------------------------------

    def _only(self, names: set[str]) -> Mask:
        """Return the rows that these filters, and no others, reject."""
        by_others = np.zeros_like(self._fleet.present)
        by_these = np.zeros_like(self._fleet.present)
        for name, rows in self._rejected.items():
            target = by_these if name in names else by_others
            target |= rows
        return by_these & ~by_others

    def _names(self, rows: Mask, most: int = MAX_NODES) -> list[str]:
        return sorted(self._fleet.names[row] for row in np.flatnonzero(rows).tolist())[:most]

    def _is_in_use(self) -> bool:
        """Return whether another pod uses a claim that only one pod may use at a time."""
        return volume_in_use.NAME in self._rejected and bool(self._rejected[volume_in_use.NAME].any())

    def _changed(self, **fields: Any) -> PendingPod | Gang:
        """Return the unit as if the pod, and members that are equal in these fields, had other values."""
        unit = self._what_ifs.unit

        def changed(pod: PendingPod) -> PendingPod:
            if any(getattr(pod.request, name) != getattr(self._request, name) for name in fields):
                return pod
            return replace(pod, request=replace(pod.request, **fields))

        return replace(unit, members=tuple(map(changed, unit.members))) if isinstance(unit, Gang) else changed(unit)

    # --- nodes that are added ---------------------------------------------------------------------------------------

    def _new_nodes(self) -> Iterator[Remedy | None]:
        """Yield whether another node like the most suitable node would help, or else what a new node would need."""
        if claim_counts.is_searched(self._fleet, self._request):
            # Which devices a driver would list on a new node is not known.
            return
        model = new_nodes.best_model(self._fleet, self._request, self._order)
        if model:
            same = NewNode(node=new_nodes.like(self._fleet, model), like=model)
            ends = self._what_ifs.ends(same)
            what = f"another node like {model}"
            yield Remedy(
                kind=RemedyKind.NEW_NODE, ends=ends, what=what, node=model, is_new=True, is_another=True, assumes=same
            )
            if ends:
                return
        for variant in new_nodes.variants(self._fleet, self._request, self._order, model):
            if self._what_ifs.ends(variant.node):
                kind = RemedyKind.LABEL if variant.labels_only else RemedyKind.NEW_NODE
                what = f"a node like {model} {variant.what}" if model else f"a node {variant.what}"
                yield Remedy(kind=kind, ends=True, what=what, node=model, is_new=True, assumes=variant.node)
                return
            yield None

    # --- nodes that change ------------------------------------------------------------------------------------------

    def _labels(self) -> Iterator[Remedy | None]:
        only = self._only({node_selector.NAME, node_affinity.NAME})
        missing = new_nodes.missing_labels(self._fleet, self._request)
        for name in self._names(only & (missing == missing[only].min(initial=len(self._request.node_selector)))):
            info = self._fleet.node_info(name)
            for labels in new_nodes.labels_for(self._request, info.labels):
                change = ChangedNode(node=replace(info, labels=labels))
                if not new_nodes.is_renamed(info.labels, labels) and self._what_ifs.ends(change):
                    what = f"{new_nodes.labels_text(info.labels, labels)} on {name}"
                    yield Remedy(kind=RemedyKind.LABEL, ends=True, what=what, node=name, assumes=change)
                    return
                yield None

    def _administrator(self) -> Iterator[Remedy]:
        """Yield the nodes that one repair puts into service for the pod."""
        for name in self._names(self._only({cordon.NAME})):
            info = self._fleet.node_info(name)
            left = tuple(taint for taint in info.taints if taint != cordon.TAINT)
            change = ChangedNode(node=replace(info, cordoned=False, taints=left))
            yield self._verified(RemedyKind.ADMINISTRATOR, f"uncordoning {name}", name, change)
        of_devices = dict[tuple[Taint, ...], None]()
        for name in self._names(self._only({taints.NAME})):
            info = self._fleet.node_info(name)
            repelling = tuple(taint for taint in info.taints if taints.repels(taint, self._request))
            left = tuple(taint for taint in info.taints if taint not in repelling)
            change = ChangedNode(node=replace(info, taints=left))
            listed = " and ".join(map(str, repelling))
            what = f"removing the taint{'s' if len(repelling) > 1 else ''} {listed} from {name}"
            yield self._verified(RemedyKind.ADMINISTRATOR, what, name, change)
            if self._request.devices and all(is_device(taint.key, self._fleet.kinds) for taint in repelling):
                of_devices[repelling] = None
        yield from map(self._tolerating, of_devices)
        for name in self._names(self._only({node_ready.NAME})):
            change = ChangedNode(node=replace(self._fleet.node_info(name), ready=True, unreachable=False))
            yield self._verified(RemedyKind.ADMINISTRATOR, f"{name} becoming ready", name, change)
        silent = self._only({DeviceFilter.NAME}) & self._fleet.has_device & ~self._fleet.fresh
        for name in self._names(silent):
            reporting = self._verified(
                RemedyKind.ADMINISTRATOR, f"a report of the agent of {name}", name, Reporting(node=name)
            )
            if reporting.ends:
                yield reporting

    def _health(self) -> Iterator[Remedy | None]:
        """Yield the fewest failed cards of a node whose recovery suffices."""
        of_types = {part.type: self._fleet.cards[part.type] for part in self._request.devices.parts}
        failed = np.zeros_like(self._fleet.present)
        for cards in of_types.values():
            # A barred card is not given once it is healthy.
            failed |= cards.failed.any(axis=1) & ~cards.bar.any(axis=1)
        for name in self._names(failed & self._only({resources.NAME, DeviceFilter.NAME})):
            row = self._fleet.rows[name]
            there = [(kind, minor) for kind, cards in of_types.items() for minor in cards.minor[row, cards.failed[row]]]
            fewest = self._healthy(name, there[:MAX_FAILED])
            if not self._what_ifs.ends(fewest, evicting=False):
                continue
            for card in fewest.cards:
                yield None
                fewer = self._healthy(name, [other for other in fewest.cards if other != card])
                if self._what_ifs.ends(fewer, evicting=False):
                    fewest = fewer
            listed = " and ".join(f"{kind} {minor}" for kind, minor in fewest.cards)
            what = f"{listed} on {name} becoming healthy"
            yield Remedy(kind=RemedyKind.ADMINISTRATOR, ends=True, what=what, node=name, assumes=fewest)

    def _healthy(self, name: str, cards: Sequence[tuple[str, int]]) -> Healthy:
        """Return that these failed cards are healthy. The Node's sums of devices follow, for each member of a gang."""
        info, unit = self._fleet.node_info(name), self._what_ifs.unit
        members = unit.size if isinstance(unit, Gang) else 1
        sums = {
            resource: info.allocatable.get(resource, 0) + members * amount
            for resource, amount in self._request.resources
            if cards and is_device(resource, self._fleet.kinds)
        }
        return Healthy(node=replace(info, allocatable={**info.allocatable, **sums}), cards=tuple(cards))

    def _tolerating(self, repelling: Sequence[Taint]) -> Remedy:
        """Return the tolerations of taints that keep pods without devices off nodes: their keys are names of resources.

        The API server's plug-in ExtendedResourceToleration adds them only to pods that request the resource of this
        name.
        """
        added = [Toleration(key=taint.key, operator="Exists", effect=taint.effect) for taint in repelling]
        listed = ", ".join(f"{{key: {each.key}, operator: Exists, effect: {each.effect}}}" for each in added)
        ends = self._what_ifs.ends(unit=self._changed(tolerations=(*self._request.tolerations, *added)))
        return Remedy(kind=RemedyKind.ADMINISTRATOR, ends=ends, what=f"tolerations: [{listed}] in the pod's spec")

    def _verified(self, kind: RemedyKind, what: str, node: str, change: Assumption) -> Remedy:
        return Remedy(kind=kind, ends=self._what_ifs.ends(change), what=what, node=node, assumes=change)

    def _capacity(self) -> Iterator[Remedy | None]:
        for row, lack in zip(self._near[:MAX_NODES].tolist(), self._lacks, strict=True):
            if lack is None:
                continue
            name = self._fleet.names[row]
            info = self._fleet.node_info(name)
            yield None
            more = {
                resource: info.allocatable.get(resource, 0) + amount for resource, amount in lack["resources"].items()
            }
            freed = [FreeCards(lack=lack)] if lack["cards"] else []
            grown = [ChangedNode(node=replace(info, allocatable={**info.allocatable, **more}))] if more else []
            changes: list[Assumption] = [*freed, *grown]
            if not changes or not self._what_ifs.ends(*changes, evicting=False):
                continue
            # Cards may be of no help once their holders have ended: the pod may have to be near one of them.
            uids = tuple(uid for cards in freed for uid in cards.holders(self._fleet))
            if uids and not self._what_ifs.ends(self._gone(uids), *grown, evicting=False):
                continue
            assumes = changes[0] if len(changes) == 1 else None
            what = f"{_lack_text(lack, self._fleet.kinds)} on {name}"
            yield Remedy(kind=RemedyKind.CAPACITY, ends=True, what=what, node=name, assumes=assumes)
            return

    # --- pods that end ----------------------------------------------------------------------------------------------

    def _ends_of_pods(self) -> Iterator[Remedy | None]:
        """Yield the smallest found sets of pods whose end suffices, on the most suitable nodes."""
        # The pods of the nodes that others' pods alone keep this one from, and what to call their place.
        crowds: list[tuple[list[Charge], str]] = []
        if self._is_in_use():
            placed = self._fleet.charges.values()
            crowds.append(([charge for charge in placed if charge.mounts.shares_with(self._request.mounts)], ""))
        else:
            names = [self._fleet.names[row] for row in self._near.tolist()]
            resolvable = {filter_.NAME for filter_ in self._order if filter_.VERDICT is Verdict.UNSCHEDULABLE}
            names += [name for name in self._names(self._only(resolvable), MAX_CROWDS) if name not in names]
            crowds += [(list(self._fleet.on_node(name)), f" on {name}") for name in names[:MAX_CROWDS]]
        for pods, where in crowds:
            yield None
            if not 0 < len(pods) <= MAX_PODS:
                continue
            if not self._what_ifs.ends(self._gone(pod.uid for pod in pods), evicting=False):
                continue
            gone = sorted(pods, key=lambda pod: (len(pod.grants), pod.pod))
            for pod in tuple(gone):
                yield None
                rest = [other for other in gone if other is not pod]
                if rest and self._what_ifs.ends(self._gone(other.uid for other in rest), evicting=False):
                    gone = rest
            who = holders(gone, self._pod.namespace)
            assumes = self._gone(pod.uid for pod in gone)
            first = ", which may wait for this pod," if any(depends_on(pod, self._pod) for pod in gone) else ""
            what = f"the end of {who}{where}{first}"
            yield Remedy(kind=RemedyKind.END, ends=True, what=what, node=gone[0].node, assumes=assumes)

    def _gone(self, uids: Iterable[str]) -> Gone:
        """Return that pods are gone, while the claims of the waiting pod stay as they are."""
        return Gone(uids=tuple(uids), kept=tuple(use.claim for use in self._request.claims))

    def _nominees(self) -> Iterator[Remedy | None]:
        """Yield the capacity kept for other pods that keeps this pod from a node."""
        for nominee in list(self._fleet.nominees.values())[:MAX_NOMINEES]:
            if nominee.uid == self._pod.uid:
                continue
            change = self._gone((nominee.uid,))
            if self._what_ifs.ends(change, evicting=False):
                who = holders([nominee], self._pod.namespace)
                what = f"giving up what is kept on {nominee.node} for {who}"
                yield Remedy(kind=RemedyKind.END, ends=True, what=what, node=nominee.node, assumes=change)
                return
            yield None

    # --- volumes ----------------------------------------------------------------------------------------------------

    def _volumes(self) -> Iterator[Remedy]:
        """Yield whether other volumes would help, if the claims or their volumes keep the pod from every node."""
        rejected = (self._rejected[filter_.NAME] for filter_ in self._order if filter_.TRAITS.of_volumes)
        if self._is_in_use() or not any(rows.any() for rows in rejected):
            return
        unclaimed = replace(self._request.mounts, claims=())
        if self._request.mounts.claims and self._what_ifs.ends(unit=self._changed(mounts=unclaimed)):
            claims = ", ".join(f'"{use.claim.partition("/")[2]}"' for use in self._request.mounts.claims)
            what = f"a volume for PersistentVolumeClaim {claims} that every node reaches"
            yield Remedy(kind=RemedyKind.CLAIM, ends=True, what=what)


def _lack_text(lack: LackingNode, kinds: Kinds) -> str:
    """Return what a node lacks: `1 cpu more and gpu 3 free`. The node's sums of devices are freed with the cards."""
    resources, cards = lack["resources"], lack["cards"]
    amounts = [
        (name, amount) for name, amount in resources.items() if name != PODS and not (cards and is_device(name, kinds))
    ]
    texts = [f"{amounts_text(amounts)} more"] if amounts else []
    if pods := resources.get(PODS):
        texts.append(f"capacity for {pods} more pod{'s' if pods > 1 else ''}")
    for card in cards:
        more = f"with {amounts_text(card['amounts'].items())} more free" if card["amounts"] else "free"
        texts.append(f"{card['type']} {card['minor']} {more}")
    return " and ".join(texts)
