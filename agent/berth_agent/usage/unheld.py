"""Pods that use cards without holding them. Pure functions, except for reading procfs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from berth_agent.kubelet.admission.mirror import Holding
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.admission.units import Units
from berth_agent.readings import Process, Reading
from berth_agent.usage import processes
from berth_api.device import MAX_DEVICES, DeviceInfo, UnheldUse
from berth_api.names import GPU

ALLOWANCE: Final = 2**30
"""Bytes of a card that every pod may use: monitoring has a CUDA context on each card, which takes half of it."""

_Key = tuple[str, str]
"""UID of a pod, and id of a card."""


class UnheldUses:
    """The uses of cards by pods that do not hold them, over several readings.

    A use is reported if two readings in a row show it: the process list, kubelet's answer and the pods are of different
    moments.
    """

    def __init__(self, *, proc: Path, own_namespace: str) -> None:
        """Create a detector. It ignores pods of the agent's `own_namespace`, such as the MPS daemon's pod."""
        self._proc, self._own_namespace = proc, own_namespace
        self._listed: Mapping[int, Iterable[Process]] = {}
        """The processes of the last reading."""
        self._last: Mapping[_Key, UnheldUse] = {}
        """What that reading showed."""
        self.confirmed: tuple[UnheldUse, ...] = ()
        """What the last two readings showed, at most `MAX_DEVICES`."""

    def restore(self, uses: Iterable[UnheldUse]) -> None:
        """Take what an earlier run confirmed for what the last reading showed, so that a restart ends no report."""
        self._last = {(use.pod_uid, use.id): use for use in uses}

    def observe(self, reading: Reading, pods: Iterable[Pod], holdings: Iterable[Holding], units: Units) -> None:
        """Take a reading, once, with what the node's pods hold by kubelet's last answer."""
        if reading.processes is None:
            return
        if reading.processes is self._listed:
            # The driver may never list them again. What has ended meanwhile is not in procfs.
            minors = {use.minor for use in self.confirmed}
            living = {minor: processes.memory_by_pod(reading.processes.get(minor, ()), self._proc) for minor in minors}
            cgroups = {pod.uid: pod.cgroup_uid for pod in pods}
            self.confirmed = tuple(
                use for use in self.confirmed if cgroups.get(use.pod_uid, use.pod_uid) in living[use.minor]
            )
            return
        held, by_uid = _Held(holdings, units), {pod.cgroup_uid: pod for pod in pods}
        uses: dict[_Key, UnheldUse] = {}
        for card in (device for device in reading.spec.devices if device.type == GPU):
            for uid, memory in processes.memory_by_pod(reading.processes.get(card.minor, ()), self._proc).items():
                pod, before = by_uid.get(uid), self._last.get((uid, card.id))
                if memory <= ALLOWANCE:
                    continue
                if pod is None and before is not None:
                    # The pod has ended or was removed, and its processes run on.
                    uses[uid, card.id] = _use(card, memory, namespace=before.namespace, pod=before.pod, uid=uid)
                elif pod is not None and pod.namespace != self._own_namespace and not held.may_hold(pod, card.id):
                    uses[pod.uid, card.id] = _use(card, memory, namespace=pod.namespace, pod=pod.name, uid=pod.uid)
        confirmed = [use for key, use in uses.items() if key in self._last]
        confirmed.sort(key=lambda use: (use.minor, use.namespace, use.pod, use.pod_uid))
        self.confirmed = tuple(confirmed[:MAX_DEVICES])
        self._listed, self._last = reading.processes, uses


class _Held:
    """The cards that pods hold, as kubelet and allocations show them."""

    def __init__(self, holdings: Iterable[Holding], units: Units) -> None:
        self._units = units
        self._ids: defaultdict[str, set[str]] = defaultdict(set)
        """UID of a pod -> ids of all that kubelet gave it."""
        for holding in holdings:
            self._ids[holding.uid].update(holding.ids)

    def may_hold(self, pod: Pod, card: str) -> bool:
        """Return whether a pod holds a card, or a part of it, or may do so for all that is known."""
        given = self._ids[pod.uid]
        if pod.may_hold_any or len(given) < pod.wanted_of_plugin:
            return True
        ids = given if pod.uses_plugin else given | {grant.parent or grant.id for grant in pod.grants}
        cards = {self._units.card(unit) for unit in ids}
        return card in cards or not cards <= self._units.cards


def _use(card: DeviceInfo, memory: int, *, namespace: str, pod: str, uid: str) -> UnheldUse:
    rounded = processes.rounded(memory)
    return UnheldUse(type=GPU, minor=card.minor, id=card.id, namespace=namespace, pod=pod, pod_uid=uid, memory=rounded)
