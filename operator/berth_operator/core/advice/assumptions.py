"""Changes of a cluster that a what-if assumes, and whether a waiting unit would be bound after one of them.

    WhatIfs(fleet, unit, policy).ends(NewNode(...))  ->  bool

All assumptions are applied to a copy of the Fleet and taken back. Each answer comes from the decision itself, including
preemption. So an answer holds for exactly what was assumed, as long as nothing else changes and no earlier unit in the
queue takes the place.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from berth_api.allocation import Grant
from berth_api.objects.visibility import LackingCard, LackingNode
from berth_operator.core.advice.lacking import is_share
from berth_operator.core.claims.bounds.errors import NoWorkError
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.departures import Departures
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.decision.gang_preemption import preempt_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import preempt
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import DeviceInventory, NodeInfo
from berth_operator.core.values.request import PendingPod

Unit = PendingPod | Gang


class Assumption(Protocol):
    """A change of the cluster."""

    def applied(self, fleet: Fleet) -> Iterator[None]:
        """Apply the change to a copy of the Fleet, yield once, and take the change back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode:
    """A node is added, in service and without pods."""

    node: NodeInfo
    like: str = ""
    """The node whose Device is copied; empty for `inventory`."""
    inventory: DeviceInventory | None = None

    def applied(self, fleet: Fleet) -> Iterator[None]:
        """Add the node for a moment."""
        if self.inventory is None and self.like:
            fleet.put_like(self.node, self.like)
        else:
            fleet.put_node(self.node)
            fleet.put_device(self.node.name, self.inventory or DeviceInventory())
            fleet.set_fresh(self.node.name, fresh=True)
        yield
        fleet.remove_device(self.node.name)
        fleet.remove_node(self.node.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedNode:
    """A Node has other labels, taints or amounts, is uncordoned, or becomes ready."""

    node: NodeInfo

    def applied(self, fleet: Fleet) -> Iterator[None]:
        """Replace the Node for a moment."""
        before = fleet.node_info(self.node.name)
        fleet.put_node(self.node)
        yield
        fleet.put_node(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """The agent of a node is alive."""

    node: str

    def applied(self, fleet: Fleet) -> Iterator[None]:
        """Count the agent as alive for a moment."""
        fleet.set_fresh(self.node, fresh=True)
        yield
        fleet.set_fresh(self.node, fresh=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """Failed cards of a node are healthy, and the Node's sums of devices follow."""

    node: NodeInfo
    cards: tuple[tuple[str, int], ...]
    """(type, minor) of each."""

    def applied(self, fleet: Fleet) -> Iterator[None]:
        """Count the cards as healthy for a moment."""
        before = fleet.node_info(self.node.name)
        fleet.put_node(self.node)
        fleet.set_health(self.node.name, self.cards, healthy=True)
        yield
        fleet.set_health(self.node.name, self.cards, healthy=False)
        fleet.put_node(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Pods have left their nodes, or the capacity kept for them is given up.

    Kubernetes then deallocates the claims that no other pod uses.
    """

    uids: tuple[str, ...]
    kept: tuple[str, ...] = ()
    """The claims (namespace/name) of the waiting pods, which stay allocated."""

    def applied(self, fleet: Fleet) -> Iterator[None]:
        """Release the pods for a moment."""
        nominees = [charge for uid in self.uids if (charge := fleet.withdraw(uid)) is not None]
        charges = [charge for uid in self.uids if (charge := fleet.charges.get(uid)) is not None]
        departures = Departures(fleet, self.kept, with_left_behind=False)
        departures.leave(charges)
        yield
        departures.come_back(charges)
        for nominee in nominees:
            fleet.nominate(nominee)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCards:
    """Cards of a node have become free, as far as a lack requires."""

    lack: LackingNode

    def applied(self, fleet: Fleet) -> Iterator[None]:
        """Reduce the placed pods' use of the cards temporarily. Capacity kept for nominated pods stays."""
        node, cards, before = self.lack["node"], self.lack["cards"], []
        row, given_up = fleet.rows[node], [grant for card in cards for _, grant in _given_up(fleet, node, card)]
        fleet.move_grants(row, given_up, -1)
        for card in filter(is_share, cards):
            columns = fleet.cards[card["type"]]
            slot = int(np.flatnonzero(columns.minor[row] == card["minor"])[0])
            used, users = columns.used[:, row, slot].copy(), int(columns.users[row, slot])
            before.append((card["type"], slot, used.copy(), users))
            held = Counter[str]()
            for _, grant in _held(fleet, node, card):
                held.update(dict(grant.amounts))
            for name, amount in card["amounts"].items():
                used[columns.index[name]] -= min(amount, held[name])
            fleet.set_card_use(card["type"], row, slot, used, users)
        yield
        for device_type, slot, used, users in before:
            fleet.set_card_use(device_type, row, slot, used, users)
        fleet.move_grants(row, given_up, 1)

    def holders(self, fleet: Fleet) -> tuple[str, ...]:
        """Return the UIDs of the pods that have to end for it; none if only shares are missing."""
        pods = (uid for card in self.lack["cards"] for uid, _ in _given_up(fleet, self.lack["node"], card))
        return tuple(dict.fromkeys(pods))


def _given_up(fleet: Fleet, node: str, card: LackingCard) -> list[tuple[str, Grant]]:
    """Return (UID of the pod, grant) of a card, or of as many instances as are missing; none if a share is missing."""
    if is_share(card):
        return []
    held = _held(fleet, node, card)
    if not card["amounts"]:
        return held
    given_up = []
    for name, amount in card["amounts"].items():
        given_up += [(uid, grant) for uid, grant in held if dict(grant.amounts).get(name)][:amount]
    return given_up


def _held(fleet: Fleet, node: str, card: LackingCard) -> list[tuple[str, Grant]]:
    """Return (UID of the pod, grant) of what placed pods hold of a card."""
    grants = ((pod.uid, grant) for pod in fleet.on_node(node) for grant in pod.grants)
    return [(uid, grant) for uid, grant in grants if (grant.type, grant.minor) == (card["type"], card["minor"])]


class WhatIfs:
    """Answers what-ifs about one unit on one copy of the Fleet."""

    def __init__(
        self,
        fleet: Fleet,
        unit: Unit,
        policy: Policy,
        budgets: Budgets,
        in_flight: Collection[str] = (),
        *,
        asked: str = "",
    ) -> None:
        """Create what-ifs on a Fleet that is modified and restored, so it must be a copy.

        `in_flight` are UIDs of pods whose Binding is not confirmed yet. `asked` is the UID of the member for which the
        user requested the answer, if the unit is a gang.
        """
        fleet.make_room()
        self.fleet, self.unit, self._asked = fleet, unit, asked
        self._policy, self._budgets, self._in_flight = policy, budgets, in_flight
        self.is_unfinished = False
        """Whether a bound ended the search for the victims of a gang."""

    def ends(self, *assumptions: Assumption, unit: Unit | None = None, evicting: bool = True) -> bool:
        """Return whether the unit, or another one in its place, would be bound if all of this were so.

        Without `evicting` that is only known if it is bound without preemption, which takes much longer to find out.

        Raises:
            PluginFailedError: a plug-in failed.
        """
        unit = unit or self.unit
        with ExitStack() as stack:
            for assumption in assumptions:
                stack.enter_context(_assumed(assumption, self.fleet))
            if isinstance(unit, Gang):
                # The asked member must be placed: a gang may leave out members beyond its minimum.
                placed = decide_gang(self.fleet, unit, self._policy)
                if not isinstance(placed, Failure):
                    return self._asked in {placement.pod.uid for placement in placed}
                if not evicting:
                    return False
                try:
                    preemption = preempt_gang(self.fleet, unit, self._policy, self._budgets, self._in_flight)
                except NoWorkError:
                    self.is_unfinished = True
                    return False
                return preemption is not None and (
                    unit.needed == unit.size or self._asked in {nominee.uid for nominee in preemption.nominees}
                )
            if isinstance(decide(self.fleet, unit, self._policy), Placement):
                return True
            if not evicting or unit.error:
                return False
            pod = replace(unit, nominated_node="")
            return preempt(self.fleet, pod, self._policy, self._budgets, self._in_flight) is not None


@contextmanager
def _assumed(assumption: Assumption, fleet: Fleet) -> Iterator[None]:
    """Return a context in which an assumption holds. It is undone even if a decision fails."""
    steps = assumption.applied(fleet)
    next(steps)
    try:
        yield
    finally:
        next(steps, None)
