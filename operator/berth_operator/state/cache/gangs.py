"""PodGroups and the gangs of pods, as the API server shows them, and their units in the queue."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from berth_api import names
from berth_api.admission import routing
from berth_api.objects.leader_lease import SucceededMembers
from berth_api.values import keys
from berth_api.words import OWN_GROUPS, TABLE, PodGroupKind
from berth_client.objects import READING_ERRORS
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import Gang
from berth_operator.core.queue.gang_tracker import GangTracker, Group, LaterMembers
from berth_operator.core.queue.promise_pauses import PromisePauses
from berth_operator.core.queue.queue import MAX_BACKOFF, Queue
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.pod_admission import NotAdmitted
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.state.cache.admission_rules import AdmissionRules
from berth_operator.state.cache.listener import Listener
from berth_operator.state.cache.nominator import Nominator
from berth_operator.state.cache.promises import PlacePromises
from berth_operator.state.cache.unreadable import UnreadableObjects
from berth_operator.state.cache.views import GroupView, StatusKind
from berth_operator.state.cache.waker import Waker
from berth_operator.state.objects import groups, pod_sets, pods
from berth_operator.state.objects.pod_sets import Templates

Object = Mapping[str, Any]


class Gangs:
    """All gangs. Whenever the queue is read, a gang's waiting members are in it as one unit, or not at all."""

    def __init__(
        self,
        *,
        gang_tracker: GangTracker,
        queue: Queue[PendingPod | Gang],
        nominator: Nominator,
        promises: PlacePromises,
        waker: Waker,
        rules: AdmissionRules,
        listener: Listener,
        clock: Callable[[], float],
    ) -> None:
        self._gang_tracker, self._queue, self._nominator = gang_tracker, queue, nominator
        self._promises, self._rules = promises, rules
        self.promise_pauses = PromisePauses()
        self.nominated_later: dict[str, tuple[PendingPod, ...]] = {}
        """Key of a gang whose victims leave -> the pods that come later and have nominated places."""
        self._waker, self._listener, self._clock = waker, listener, clock
        self._schedulers: Collection[str] | None = None
        self._groups: dict[str, dict[str, tuple[Group, Object]]] = {}
        """namespace/name -> API group -> the PodGroup, and its object."""
        self._without_controllers: set[str] = set()
        """Namespaces where controllers define no gangs."""
        self._owner_kinds: Collection[str] = ()
        """Kinds of controllers whose objects are watched."""
        self._sizes: dict[tuple[str, str], Mapping[str, int]] = {}
        """(kind, namespace/name) of a controller -> size of each gang (namespace/name), with later pods."""
        self._read: dict[tuple[str, str], tuple[object, ...]] = {}
        """(kind, namespace/name) of a controller -> what was read of it."""
        self._gang_sizes: dict[str, int] = {}
        """Key of a gang whose controller was read -> its size."""
        self._unreadable = UnreadableObjects("members of gangs")
        self.templates = Templates()
        """How pods are made from the templates in controllers."""

    def set_schedulers(self, names: Collection[str]) -> None:
        """Set the scheduler names whose gangs are ours. Until then, all gangs are ours."""
        self._schedulers = names

    def is_ours(self, gang: Membership) -> bool:
        """Return whether we track a gang; gangs of other schedulers are ignored.

        A controller's gang may have members, such as a leader without devices, that another scheduler places.
        """
        if gang.controller:
            return gang.minimum is not None or gang.controller in self._owner_kinds
        return self.schedules(gang.scheduler)

    def schedules(self, name: str) -> bool:
        """Return whether a scheduler name is one of ours."""
        return self._schedulers is None or name in self._schedulers

    def put_namespace(self, name: str, annotations: Mapping[str, str]) -> bool:
        """Set the annotations of a namespace; return whether its waiting pods must be read again."""
        before = name in self._without_controllers
        self._without_controllers.discard(name)
        if annotations.get(names.CONTROLLER_GANGS) == "false":
            self._without_controllers.add(name)
        return before != (name in self._without_controllers)

    def applies(self, gang: Membership) -> bool:
        """Return whether waiting pods are members of a gang: users named it, or their controller defines it.

        Until its object is read, a watched controller may define it.
        """
        if not gang.controller:
            return True
        allowed = self.is_ours(gang) and keys.split(gang.group)[0] not in self._without_controllers
        return allowed and (gang.minimum is not None or self._gang_sizes.get(gang.key, 2) > 1)

    # --- controllers that define gangs ------------------------------------------------------------------------

    def set_owner_kinds(self, kinds: Collection[str]) -> None:
        """Set the kinds of controllers whose objects are watched."""
        self._owner_kinds = kinds

    def put_owner(self, kind: str, raw: Object) -> bool:
        """Add or update a controller with the sizes of its gangs; return whether a size has changed."""
        key, metadata = (kind, keys.of(raw)), raw["metadata"]
        namespace = metadata["namespace"]
        # Many gangs may share the parts that come after them, and the object's status changes often.
        parts = {id(part): part for of_gang in raw["later"].values() for part in of_gang}
        pods = [self._pod_of(part.template, namespace) for part in parts.values()]
        places = {number: place for place, number in enumerate(parts)}
        later_of = {name: tuple(places[id(part)] for part in of_gang) for name, of_gang in raw["later"].items()}
        parts_read = [(part.gang, part.count, *pod) for part, pod in zip(parts.values(), pods, strict=True)]
        read = metadata["uid"], raw["sizes"], raw["replicas"], parts_read, later_of
        if self._read.get(key) == read:
            return False
        self._read[key] = read
        known, sizes = self._sizes.get(key, {}), dict[str, int]()
        self._sizes[key] = sizes
        later = [
            LaterMembers(
                gang=Membership(group=keys.join(namespace, gang), controller=kind),
                count=count if is_ours else 0,
                pod=pod,
            )
            for gang, count, pod, is_ours in parts_read
        ]
        following = {part.gang for part in parts.values()}
        # Without a size, each gang would have more pods than any cluster.
        for gang in () if raw["sizes"] else self._gang_tracker.remove_replicas(kind, key[1]):
            self.gather(gang)
        for name, size in raw["sizes"].items():
            group = Group(
                name=keys.join(namespace, name),
                uid=metadata["uid"],
                controller=kind,
                minimum=size,
                created=metadata["creationTimestamp"],
                later=tuple(later[place] for place in later_of.get(name, ())),
            )
            if raw["replicas"] is not None:
                # The pods of these gangs show the size, too, so no pod has to be read again.
                for gang in self._gang_tracker.put_replicas(group, raw["replicas"]):
                    self.gather(gang)
                continue
            self._gang_tracker.put_group(group)
            gang = Membership(group=group.name, controller=kind)
            # A single pod is a gang, too, if others come after it, or if it comes after others.
            others = sum(part.count for part in group.later) + (name in following)
            sizes[group.name] = self._gang_sizes[gang.key] = size + others
            self.gather(gang)
        for name in known.keys() - sizes.keys():
            self._forget_group(kind, name)
        return known != sizes

    def _pod_of(self, template: Object | None, namespace: str) -> tuple[PendingPod | None, bool]:
        """Return a pod that a controller creates later, and whether it can be read and is ours.

        Without a template, it requests the same as the members that come first.
        """
        if template is None:
            return None, True
        pod = pod_sets.read_template(template, namespace, self.templates)
        # A pod with devices that names no scheduler is routed to us as the others are.
        is_unnamed = pod is not None and pod.scheduler == routing.DEFAULT and bool(pod.request.devices)
        return pod, pod is not None and not pod.error and (is_unnamed or self.schedules(pod.scheduler))

    def remove_owner(self, kind: str, key: str) -> None:
        """Remove a controller (namespace/name). Its pods follow."""
        self._read.pop((kind, key), None)
        for gang in self._gang_tracker.remove_replicas(kind, key):
            self.gather(gang)
        for name in self._sizes.pop((kind, key), {}):
            self._forget_group(kind, name)

    def _forget_group(self, kind: str, name: str) -> None:
        gang = Membership(group=name, controller=kind)
        self._gang_tracker.remove_group(name, kind)
        self._gang_sizes.pop(gang.key, None)
        self.gather(gang)

    # --- PodGroups --------------------------------------------------------------------------------------------

    def put_group(self, raw: Object, kind: PodGroupKind = OWN_GROUPS) -> None:
        """Add or update a PodGroup."""
        group = groups.group(raw, kind)
        self._groups.setdefault(group.name, {})[kind.group] = group, raw
        self._choose(group.name)

    def remove_group(self, name: str, kind: PodGroupKind) -> None:
        """Remove a PodGroup (namespace/name)."""
        of_name = self._groups[name]
        del of_name[kind.group]
        if not of_name:
            del self._groups[name]
        self._choose(name)

    def _choose(self, name: str) -> None:
        """Decide a gang by the PodGroup of its name whose kind is first in the table."""
        kind = self._kind(name)
        if kind is None:
            self._gang_tracker.remove_group(name)
        else:
            self._gang_tracker.put_group(self._groups[name][kind.group][0])
        self.gather(Membership(group=name))

    def _kind(self, name: str) -> PodGroupKind | None:
        of_name = self._groups.get(name, {})
        return next((kind for kind in TABLE.pod_groups if kind.group in of_name), None)

    def group_names(self) -> list[str]:
        """Return namespace/name of all PodGroups whose status Berth writes, sorted."""
        kinds = {name: self._kind(name) for name in self._groups}
        return sorted(name for name, kind in kinds.items() if kind is not None and kind.has_status)

    def view(self, name: str) -> GroupView | None:
        """Return the view of a PodGroup; None if there is no PodGroup of this name whose status Berth writes."""
        kind = self._kind(name)
        if kind is None or not kind.has_status:
            return None
        group, raw = self._groups[name][kind.group]
        problem, unscheduled = self._gang_tracker.why_not(name)
        return GroupView(
            kind=kind,
            group=group,
            metadata=raw["metadata"],
            status=raw.get("status") or {},
            counts=self._gang_tracker.counts(name),
            problem=problem,
            unscheduled=unscheduled,
        )

    def unschedulable(self, gang: Membership, failure: Failure) -> None:
        """Record why too few members of a gang were placed."""
        if self._gang_tracker.unschedulable(gang, failure) and gang.has_object:
            self._listener.status_changed(StatusKind.POD_GROUP, gang.group)

    # --- members ----------------------------------------------------------------------------------------------

    def wait(self, pod: PendingPod, gang: Membership) -> None:
        """Add or update a waiting member."""
        self._gang_tracker.wait(pod, gang)
        self._changed(gang)

    def no_longer_waits(self, uid: str, gang: Membership) -> None:
        """Remove a waiting member."""
        self._gang_tracker.no_longer_waits(uid)
        self._changed(gang)

    def gate(self, uid: str, gang: Membership) -> None:
        """Record that a member has scheduling gates: as with kube-scheduler, a PodGroup of Kubernetes waits for it."""
        if gang.is_kubernetes:
            self._gang_tracker.gate(uid, gang)
            self._changed(gang)

    def ungate(self, uid: str, gang: Membership) -> None:
        """Record that a member has no scheduling gates any more, or was deleted."""
        self._gang_tracker.ungate(uid)
        self._changed(gang)

    def assume(self, charge: Charge, gang: Membership) -> None:
        """Record that a member is assumed; the caller gathers the gang once all its members are."""
        self._gang_tracker.hold(charge, gang, bound=False)

    def bind(self, charge: Charge, gang: Membership) -> None:
        """Record that our Binding of a member has succeeded."""
        self._gang_tracker.hold(charge, gang, bound=True)
        self._changed(gang)

    def put_bound(self, raw: Object, charge: Charge, gang: Membership) -> None:
        """Add or update a member that the API server shows on a node."""
        annotations = raw["metadata"].get("annotations") or {}
        self._gang_tracker.hold(
            charge,
            gang,
            bound=True,
            running=pods.is_running(raw),
            is_ours=names.EPOCH in annotations,
            record=annotations.get(names.BOUND_WITH, ""),
        )
        if gang.controller and names.EPOCH in annotations and self._gang_tracker.needs_request(charge.uid):
            self._put_request(raw)
        self._changed(gang)

    def _put_request(self, raw: Object) -> None:
        """Record what a bound member requested. Without it, the pod is charged nevertheless."""
        uid = raw["metadata"]["uid"]
        try:
            self._gang_tracker.put_request(pods.pending(raw, self.templates.kinds, self.templates.priorities))
        except READING_ERRORS as error:
            self._unreadable.put(uid, raw, error)
        else:
            self._unreadable.discard(uid)

    def judge(self) -> list[tuple[str, list[Charge]]]:
        """Judge whether the gangs that another leader bound have formed; return unknown cases with their pods.

        Call it when all their members have been read.
        """
        judged = self._gang_tracker.judge()
        for gang, _, _ in judged:
            self._changed(gang)
        return [(unknown, members) for _, unknown, members in judged if unknown]

    def release(self, uid: str, gang: Membership) -> None:
        """Record that a member no longer has a node."""
        self._gang_tracker.release(uid)
        self._unreadable.discard(uid)
        self._changed(gang)

    def put_ended(self, raw: Object) -> None:
        """Record that a pod has succeeded or failed."""
        gang = groups.of_placed(raw)
        if gang is not None and self.is_ours(gang):
            succeeded = raw["status"]["phase"] == "Succeeded"
            owner = pods.owner_of(raw["metadata"])
            self._gang_tracker.end(raw["metadata"]["uid"], gang, succeeded=succeeded, owner=owner)
            self._changed(gang)

    def remove_ended(self, uid: str) -> None:
        """Remove a pod that had ended."""
        gang = self._gang_tracker.gang_of(uid)
        is_followed = gang is not None and self.schedules(gang.scheduler)
        self._gang_tracker.remove_ended(uid, is_followed=is_followed)
        if gang is not None:
            self._changed(gang)

    def restore_succeeded(self, recorded: Iterable[SucceededMembers]) -> None:
        """Remember the members that had succeeded and were deleted while the last leader led."""
        for gang in self._gang_tracker.restore(recorded):
            self._changed(gang)

    # --- units ------------------------------------------------------------------------------------------------

    def unit(self, gang: Membership) -> Gang | None:
        """Return a gang's waiting members as a unit to decide; None if there are too few."""
        return self._gang_tracker.ready(gang, self._clock())

    def _changed(self, gang: Membership) -> None:
        """Gather a gang before the queue is next read.

        Each of its n members may change by an event of its own, and gathering visits all of them.
        """
        self._queue.defer(gang.key, partial(self.gather, gang))
        self._listener.work_ready()
        self._mark(gang)

    def _mark(self, gang: Membership) -> None:
        if gang.has_object:
            self._listener.status_changed(StatusKind.POD_GROUP, gang.group)

    def gather(self, gang: Membership) -> None:
        """Put a gang's waiting members into the queue if there are enough members; otherwise remove them."""
        if (unit := self._with_promised_places(gang)) is None:
            self._queue.remove(gang.key)
            self._nominator.withdraw_gang(gang)
        else:
            self._waker.put(unit)
        self._mark(gang)

    def _with_promised_places(self, gang: Membership) -> Gang | None:
        """Return a gang's unit whose members have taken the places that were promised to them."""
        unit = self.unit(gang)
        if unit is None or not len(self._promises):
            return unit
        without = [pod for pod in unit.members if not pod.nominated_node]
        handed_over = [pod for pod in without if self._promises.hand_over(pod) is not pod]
        return self.unit(gang) if handed_over else unit

    def refusal(self, unit: Gang) -> NotAdmitted | None:
        """Return why admission would not create all pods that come after a gang's members; None if it would."""
        return self._rules.refusal(unit.expected, self.not_created({pod.uid for pod in unit.expected}))

    def admitted(self, unit: Gang) -> Gang:
        """Return a gang as it is decided if admission would not create all pods that come later: alone."""
        return unit if self.refusal(unit) is None else replace(unit, expected=())

    def promise_pause(self, unit: Gang) -> str:
        """Return why no places are kept for the pods that come after a gang's members now; empty if some may be."""
        why = self.promise_pauses.why(unit.membership, self._clock()) if unit.expected else ""
        return not_kept(unit, why) if why else ""

    def not_created(self, besides: Collection[str] = ()) -> Iterator[PendingPod]:
        """Yield the pods that have places and do not exist yet, except some UIDs.

        Those that exist are counted as used.
        """
        nominated = (pod for pods in self.nominated_later.values() for pod in pods)
        missing: dict[tuple[str, str], int] = {}
        for pod in (*(pod for _, pod, _ in self._promises.all()), *nominated):
            if pod.uid in besides:
                continue
            if pod.gang is not None and pod.gang.controller:
                key = pod.gang.key, pod.workload
                if key not in missing:
                    left = self._gang_tracker.still_to_come(pod.gang)
                    missing |= {(pod.gang.key, joined): counts.missing for joined, counts in left.items()}
                missing[key] = missing.get(key, 0) - 1
                if missing[key] < 0:
                    continue
            yield pod

    def are_off(self, gang: Membership) -> bool:
        """Return whether controllers define no gangs in a gang's namespace."""
        return keys.split(gang.group)[0] in self._without_controllers

    def binding_started(self, placements: Iterable[Placement]) -> None:
        """Record that the Bindings of an assumed gang are about to be sent."""
        for gang in gangs_of(placements):
            self._gang_tracker.binding_started(gang, self._clock())

    def back_off(self, gang: Membership, longest: float = MAX_BACKOFF) -> None:
        """Back off a gang. This takes effect when it is next gathered."""
        self._gang_tracker.back_off(gang, self._clock(), longest)

    def back_off_and_gather(self, gang: Membership) -> None:
        """Decide a gang again after its back-off, because its last decision cannot be carried out."""
        self.back_off(gang)
        self.gather(gang)

    def abort(self, gang: Membership, *, keep: bool) -> tuple[str, list[Charge]]:
        """Stop completing a gang whose timeout has passed; return the reason and the members to delete."""
        aborted = self._gang_tracker.abort(gang, self._clock(), keep=keep)
        self.gather(gang)
        return aborted


def not_kept(unit: Gang, why: str) -> str:
    """Return the sentence that no places are kept for the pods that come after a gang's members."""
    return f"No places are kept for {len(unit.expected)} pod(s) that come later: {why}."


def gangs_of(placements: Iterable[Placement]) -> set[Membership]:
    """Return the gangs of these placements' pods."""
    return {placement.pod.gang for placement in placements if placement.pod.gang is not None}
