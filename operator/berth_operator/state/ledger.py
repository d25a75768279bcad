"""What kubelet gave, node by node, and what it makes of what pods are charged for.

GpuPods tell what pods hold that are there; a Device's `held` tells it of those that are gone, too. Both may come before
the pod that they are about, and after it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from berth_api.allocation import Grant
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import Case, Device, Given
from berth_operator.core.values.charge import Charge
from berth_operator.state.kubelet import NO_WORD, Consistency, GpuPodRecord, Word

AS_ALLOCATED: Final[Consistency] = ("True", "AsAllocated", "kubelet gave the pod nothing but what it was allocated")
NOTHING_ALLOCATED: Final[Consistency] = (
    "True",
    "NothingAllocated",
    "the pod has no allocation; what it holds is charged to it",
)
DRIFTED: Final = "Drifted"


class Ledger:
    """Beside a Fleet: what was promised to those that are charged for something else, and why."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.gpu_pods: dict[str, GpuPodRecord] = {}
        """By namespace/name."""
        self.drifted: dict[str, Case] = {}
        """UID -> a pod that holds something else than it was promised."""
        self.on_drift: Callable[[Charge], None] = lambda _promised: None
        """Called with what a pod was promised, when it has begun or ceased to hold something else, or holds yet another
        thing."""
        self._given: dict[str, GpuPodRecord] = {}
        """By the UID of the pod."""
        self._promised: dict[str, Charge] = {}
        """UID -> what a pod was promised that is charged for something else."""
        self._words: dict[str, Word] = {}
        self._boots: dict[str, str] = {}
        """By node."""

    # --- what is said of kubelet ------------------------------------------------------------------------------

    def put_gpu_pod(self, record: GpuPodRecord) -> Given | None:
        """Take what a pod holds; give what the GpuPod told before."""
        before = self.remove_gpu_pod(record.key)
        self.gpu_pods[record.key] = self._given[record.given.uid] = record
        return before

    def remove_gpu_pod(self, key: str) -> Given | None:
        """Forget what a pod holds; give what that was."""
        record = self.gpu_pods.pop(key, None)
        if record is None:
            return None
        if self._given.get(record.given.uid) is record:
            del self._given[record.given.uid]
        return record.given

    def put_word(self, node: str, word: Word) -> None:
        """Take what a node's agent says."""
        self._words[node] = word

    def put_boot(self, node: str, boot_id: str) -> bool:
        """Take in which boot a node is; tell whether that is news."""
        before, self._boots[node] = self._boots.get(node), boot_id
        return before != boot_id

    def forget_node(self, node: str) -> None:
        """Forget a node of which there is neither Node nor Device."""
        self._words.pop(node, None)
        self._boots.pop(node, None)

    def held(self, node: str) -> Mapping[str, Given]:
        """Give what pods hold on a node, be they gone or not; what was held before its last boot is free."""
        word, boot_id = self._words.get(node, NO_WORD), self._boots.get(node)
        return {} if boot_id and word.boot_id and boot_id != word.boot_id else word.held

    def foreign(self, node: str) -> tuple[Device, ...]:
        """Give the cards of a node that processes outside Kubernetes use."""
        return self._words.get(node, NO_WORD).foreign

    def known_on(self, node: str) -> set[str]:
        """Give the UIDs of pods of which anything is or was said on a node."""
        charges = self._fleet.on_node(node)
        said = {each.uid for each in charges if each.uid in self._given or each.uid in self._promised}
        left = {each.uid.rpartition("/")[2] for each in charges if not kubelet_allocation.is_pod(each)}
        return said | left | self._words.get(node, NO_WORD).held.keys()

    # --- what is charged --------------------------------------------------------------------------------------

    def given(self, promised: Charge) -> Given | None:
        """Give what kubelet gave a pod, if it is known; a word about a pod of another name or node is none."""
        record = self._given.get(promised.uid)
        found = record.given if record is not None and record.given.devices else None
        if found is None:
            found = self.held(promised.node).get(promised.uid)
        return found if found is not None and (found.pod, found.node) == (promised.pod, promised.node) else None

    def promised(self, known: Charge) -> Charge:
        """Give what a pod that is charged was promised."""
        return self._promised.get(known.uid, known)

    def reckoned(self, promised: Charge) -> Charge:
        """Give what a pod is charged for."""
        given = self.given(promised)
        if given is None:
            return promised
        return kubelet_allocation.charged(self._fleet, promised, given, claimed=self._is_claimed(promised, given))

    def charged(self, promised: Charge) -> Charge:
        """Return the same on the cards as they are now, and keep what was promised if that is something else."""
        promised = self._fleet.resolved(promised)
        found = self.reckoned(promised)
        if found is promised:
            self._promised.pop(promised.uid, None)
        else:
            self._promised[promised.uid] = promised
        self._note(promised)
        return found if found is promised else self._fleet.resolved(found)

    def dismiss(self, promised: Charge) -> None:
        """Forget a pod that is gone."""
        self._promised.pop(promised.uid, None)
        if self.drifted.pop(promised.uid, None) is not None:
            self.on_drift(promised)

    def left_behind(self, node: str, uid: str) -> Charge | None:
        """Give what a pod that is gone still holds, if anything."""
        given = self.held(node).get(uid)
        return None if given is None else kubelet_allocation.left_behind(self._fleet, given)

    def _is_claimed(self, promised: Charge, given: Given) -> bool:
        """Tell whether a pod holds what was promised to another that kubelet has given nothing yet."""
        new = kubelet_allocation.surprising(promised, given)
        return bool(new) and any(
            kubelet_allocation.is_of(grant, each)
            for other in self._fleet.on_node(given.node)
            if other.uid != given.uid and kubelet_allocation.by_kubelet(other) and self.given(other) is None
            for grant in other.grants
            for each in new
        )

    def _note(self, promised: Charge) -> None:
        """Keep in mind whether the pod holds something else than it was promised."""
        given = self.given(promised)
        drifts = given is not None and kubelet_allocation.difference(promised, given)
        case = Case(promised=promised, given=given) if given is not None and drifts else None
        if case == self.drifted.get(promised.uid):
            return
        if case is None:
            del self.drifted[promised.uid]
        else:
            self.drifted[promised.uid] = case
        self.on_drift(promised)

    # --- what is to be done about it --------------------------------------------------------------------------

    def drifted_on(self, node: str) -> list[Case]:
        """Give the pods of a node that hold something else than they were promised."""
        return [each for each in self.drifted.values() if each.given.node == node]

    def to_be_rewritten(self, node: str) -> Iterator[tuple[Case, Mapping[str, Grant]]]:
        """Give the pods of a node whose allocations are to say what they hold, with what stands for what."""
        pods = (
            each
            for each in self._fleet.on_node(node)
            if kubelet_allocation.is_pod(each) and each.uid not in self.drifted
        )
        beside = [given for each in pods if (given := self.given(each)) is not None]
        return kubelet_allocation.to_be_rewritten(self._fleet, self.drifted_on(node), beside)

    def consistency(self, record: GpuPodRecord) -> Consistency | None:
        """Return whether a pod holds what it was allocated; None if the pod is not known."""
        known = self._fleet.charges.get(record.given.uid)
        if known is None or (known.pod, known.node) != (record.given.pod, record.given.node):
            return None
        promised = self.promised(known)
        if told := kubelet_allocation.difference(promised, record.given):
            return "False", DRIFTED, told
        return AS_ALLOCATED if promised.grants else NOTHING_ALLOCATED
