"""The mirror of kubelet's admission: the node's pods in its order, what it was promised, and what it says it gave.

Kubelet's own watch brings it pods one by one, in the order of their versions; what it finds when it begins to watch
it admits in the order of their creation. It records what a container got when we have answered, so that until then
only our promise tells. Of init containers that end it never tells, and the promise is all there is.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from berth_agent.kubelet.admission.picture import NONE, Asker, Ids, Picture
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.admission.units import Units

RECORDED_SECONDS: Final = 1.0
"""After this kubelet has recorded what it was promised, or never will: admission failed elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a container has, by names that outlive its Pod object."""

    uid: str
    namespace: str
    pod: str
    container: str
    ids: tuple[str, ...]

    @property
    def asker(self) -> Asker:
        """Give the container's name on the node."""
        return Asker(uid=self.uid, container=self.container)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What kubelet was told that it may give to a container, as long as kubelet does not say so itself."""

    asker: Asker
    resource: str
    ids: Ids
    at: float
    """Monotonic seconds."""
    silent: bool = False
    """Whether kubelet never says so: of an init container that ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What kubelet says that a container has; it names pods, but not their UIDs."""

    namespace: str
    pod: str
    container: str
    by_resource: Mapping[str, Ids]


class Mirror:
    """The state of one node's admission."""

    def __init__(self) -> None:
        self.units = Units()
        self._pods: dict[str, Pod] = {}
        """In kubelet's order."""
        self._told: dict[Asker, Told] = {}
        self._promises: dict[tuple[Asker, str], Promise] = {}
        self._left: dict[Asker, Holding] = {}
        """What containers had and kubelet no longer tells, as long as their processes may run."""
        self._running: frozenset[str] = frozenset()
        """UIDs of the pods that had processes at the last look."""
        self._forgotten: set[str] = set()
        """UIDs of pods of which kubelet told something and does no more: it will not admit them again."""
        self._doubtful: set[str] = set()
        """UIDs of pods for whom a promise came to nothing."""
        self._version = -1
        """Of the last list."""

    # --- the node's pods ----------------------------------------------------------------------------------------

    def put(self, pod: Pod) -> bool:
        """Take a pod that is new or changed, unless it is older than the last list; tell whether it matters."""
        if pod.version <= self._version:
            return False
        before, self._pods[pod.uid] = self._pods.get(pod.uid), pod
        if before is None:
            self._name_again()
        return before is None or replace(before, version=pod.version) != pod

    def remove(self, pod: Pod) -> bool:
        """Take leave of a pod, unless that is older than the last list; what it had may be in use for a while."""
        is_there = pod.version > self._version and pod.uid in self._pods
        if is_there:
            self._remove(pod.uid)
        return is_there

    def _remove(self, uid: str) -> None:
        pod = self._pods.pop(uid)
        self._forgotten.discard(uid)
        self._doubtful.discard(uid)
        self._left |= {each.asker: each for each in self._had(pod)}

    def replace(self, pods: Collection[Pod], version: int) -> None:
        """Take a whole list, as of a version. Those that were known keep their places, and others follow them."""
        first = self._version < 0
        for uid in self._pods.keys() - {pod.uid for pod in pods}:
            self._remove(uid)
        for pod in sorted(pods, key=lambda each: (each.created, each.version) if first else ("", each.version)):
            self._pods[pod.uid] = pod
        self._version = version
        self._name_again()

    def reorder(self) -> None:
        """Know that kubelet began to watch anew: what it has not admitted yet it takes in the order of creation."""
        self._pods = dict(sorted(self._pods.items(), key=lambda item: (item[1].created, item[1].version)))

    # --- what kubelet was promised, and what it says -----------------------------------------------------------

    def promise(self, asker: Asker, resource: str, ids: Ids, now: float) -> None:
        """Remember what kubelet was answered.

        Where another pod was promised some of it, it was this one all the time: kubelet admits one after the other.
        """
        made = Promise(asker=asker, resource=resource, ids=ids, at=now, silent=self._ends(asker))
        mistaken = {each.asker.uid for each in self._promises.values() if each.ids & ids} - {asker.uid}
        for each in [each for each in self._promises.values() if each.asker.uid in mistaken]:
            del self._promises[each.asker, each.resource]
            for name in self._init_containers(asker, resource, len(each.ids)):
                owner = Asker(uid=asker.uid, container=name)
                self._promises[owner, resource] = replace(each, asker=owner, silent=True)
        self._promises[asker, resource] = made

    def _ends(self, asker: Asker) -> bool:
        return any(each.ends for each in self._pods[asker.uid].containers if each.name == asker.container)

    def _init_containers(self, asker: Asker, resource: str, size: int) -> list[str]:
        """Give the first init container that wants so many, as a list of one or none."""
        listed = self._pods[asker.uid].containers
        return [each.name for each in listed if each.ends and each.wants.get(resource) == size][:1]

    def settle(self, told: Iterable[Told], asked_at: float) -> None:
        """Take what kubelet says, as of a moment after `asked_at`, and keep of the promises what it leaves open."""
        told_before, self._told = self._told, {self._named(each): each for each in told}
        left = {asker: _left(asker, each) for asker, each in told_before.items() if asker not in self._told}
        self._left |= left
        self._forgotten |= {asker.uid for asker in left}
        recorded = {
            unit: asker.uid for asker, each in self._told.items() for ids in each.by_resource.values() for unit in ids
        }
        before = self._promises
        self._promises = {key: each for key, each in before.items() if self._stands(each, recorded, asked_at)}
        named = {asker.uid for asker in self._told}
        self._doubtful = (self._doubtful | {each.uid for each, _ in before.keys() - self._promises.keys()}) - named

    def offered(self, resource: str, free: Ids) -> None:
        """Know what kubelet has to give: what was promised of that came to nothing.

        An init container may still run though kubelet has given up its pod.
        """
        void = {
            key: each
            for key, each in self._promises.items()
            if each.resource == resource and not each.ids.isdisjoint(free)
        }
        self._promises = {key: each for key, each in self._promises.items() if key not in void}
        self._doubtful |= {asker.uid for asker, _ in void}
        silent = (each for each in void.values() if each.silent)
        self._left |= {each.asker: self._holding(each.asker, each.ids) for each in silent}

    def _named(self, told: Told) -> Asker:
        """Find out whose it is. What a removed pod had, its successor of the same name has only if it was promised."""
        pod = next((each for each in self._pods.values() if each.key == f"{told.namespace}/{told.pod}"), None)
        asker = Asker(uid=pod.uid if pod else f"{told.namespace}/{told.pod}", container=told.container)
        before = (old for old, each in self._told.items() if each == told and old in self._left)
        return asker if self._was_promised(asker) else next(before, asker)

    def _name_again(self) -> None:
        """Give what kubelet told to pods that it knew before us."""
        self._told = {self._named(each): each for each in self._told.values()}

    def _was_promised(self, asker: Asker) -> bool:
        return any(each == asker for each, _ in self._promises)

    def _stands(self, promise: Promise, recorded: Mapping[str, str], asked_at: float) -> bool:
        if promise.asker.uid not in self._pods or self._pods[promise.asker.uid].ended:
            return False
        if any(recorded.get(unit, promise.asker.uid) != promise.asker.uid for unit in promise.ids):
            return False
        if promise.silent:
            return True
        known = self._told.get(promise.asker)
        is_recorded = known is not None and promise.resource in known.by_resource
        return not is_recorded and asked_at - promise.at < RECORDED_SECONDS

    # --- what follows -------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Tell whether kubelet has said all that it was promised for."""
        return all(each.silent for each in self._promises.values())

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Give the pods that have not ended, in their order."""
        return tuple(pod for pod in self._pods.values() if not pod.ended)

    def pod(self, uid: str) -> Pod:
        """Give a pod of the picture."""
        return self._pods[uid]

    @property
    def promises(self) -> tuple[Promise, ...]:
        """Give what is promised and not yet said."""
        return tuple(self._promises.values())

    @property
    def has_left(self) -> bool:
        """Tell whether something was had by containers of which it is not known that they ended."""
        return bool(self._left)

    def picture(self) -> Picture:
        """Give all of it at this moment."""
        allocated: dict[Asker, dict[str, Ids]] = {asker: dict(each.by_resource) for asker, each in self._told.items()}
        for promise in self._promises.values():
            allocated.setdefault(promise.asker, {}).setdefault(promise.resource, promise.ids)
        return Picture(
            pods=self.pods,
            forgotten=frozenset(self._forgotten),
            doubtful=frozenset(self._doubtful),
            allocated=allocated,
            recorded=frozenset(asker.uid for asker in self._told),
            unproven=tuple(each.ids for each in self._promises.values()),
            lingering=self._lingering(),
            running=self._running,
            units=self.units,
        )

    def holdings(self) -> tuple[Holding, ...]:
        """Give what containers have, each pod's by the order of its containers, and what they had that are gone."""
        there = {each.asker: each for pod in self._pods.values() for each in self._had_of_kubelet(pod)}
        return tuple((self._left | there).values())

    def keep_left(self, running: Collection[str]) -> None:
        """Know which pods have processes; what the others had is free."""
        self._left = {asker: each for asker, each in self._left.items() if asker.uid in running}
        self._running = frozenset(running)

    def recall(self, promises: Iterable[Promise], holdings: Iterable[Holding], now: float) -> None:
        """Take up what an earlier run left: its promises, as if given now, and what containers had."""
        self._promises = {(each.asker, each.resource): replace(each, at=now) for each in promises}
        self._left |= {each.asker: each for each in holdings}

    def _lingering(self) -> dict[str, Ids]:
        found: dict[str, Ids] = {}
        for asker, each in self._left.items():
            found[asker.uid] = found.get(asker.uid, NONE).union(each.ids)
        return found

    def _had(self, pod: Pod) -> tuple[Holding, ...]:
        """Give what a pod has, of kubelet or by its annotation alone."""
        if pod.ended:
            return ()
        if pod.uses_plugin:
            return tuple(self._had_of_kubelet(pod))
        seen = [(each.name, each.visible) for each in pod.containers if each.visible]
        listed = seen or [(each.name, pod.granted) for each in pod.containers[:1] if pod.granted]
        return tuple(_holding(pod, name, ids) for name, ids in listed)

    def _had_of_kubelet(self, pod: Pod) -> Iterable[Holding]:
        """Give what kubelet gave a pod. What an init container had and no other took on stays with it."""
        told: dict[str, Ids] = {
            asker.container: NONE.union(*each.by_resource.values())
            for asker, each in self._told.items()
            if asker.uid == pod.uid
        }
        left = NONE.union(*told.values())
        for promise in self._promises.values():
            if promise.asker.uid == pod.uid and promise.silent:
                name = promise.asker.container
                told[name] = told.get(name, NONE) | (promise.ids - left)
        return [_holding(pod, each.name, sorted(told[each.name])) for each in pod.containers if told.get(each.name)]

    def _holding(self, asker: Asker, ids: Ids) -> Holding:
        return _holding(self._pods[asker.uid], asker.container, sorted(ids))


def _holding(pod: Pod, container: str, ids: Iterable[str]) -> Holding:
    return Holding(uid=pod.uid, namespace=pod.namespace, pod=pod.name, container=container, ids=tuple(ids))


def _left(asker: Asker, told: Told) -> Holding:
    ids = tuple(sorted(NONE.union(*told.by_resource.values())))
    return Holding(uid=asker.uid, namespace=told.namespace, pod=told.pod, container=told.container, ids=ids)
