"""Whether Berth had a true reason for each pod that it deleted, and whether it evicts again and again.

This is a part of the audit in `tests.chaos.life_auditor`, which has the rules.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos import fitting
from tests.chaos.findings import Finding, FindingKind
from tests.chaos.history import Kind, Revision
from tests.chaos.life_state import ClusterState, Object, Pod, is_disrupted

LOST_SETS: Final = 2
"""Sets of victims that may be lost in a row."""
SAME_SET: Final = 5.0
"""Seconds from the departure of a victim to the eviction of another one of its set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A pod that was preempted."""

    victim: Pod
    preemptor: str
    """The controller of the pod for which it was."""
    about: str
    node: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A deletion by Berth whose reason is not known yet."""

    pod: Pod
    number: int
    gang_had_formed: bool
    had_failed_card: bool
    helped: frozenset[str]
    """Keys of the waiting pods of higher priorities that the node would take; of all pods if that cannot be judged."""
    may_help_any: bool


class HarmAuditor:
    """Judges deletions by Berth."""

    def __init__(self, state: ClusterState, *, deleted: frozenset[str], lag: float, pause: float) -> None:
        """Create an auditor; `deleted` has the UIDs of pods that Berth deleted, and times are in seconds."""
        self._state, self._deleted, self._lag, self._pause = state, deleted, lag, pause
        self._deletions: dict[str, Deletion] = {}
        self._recorded: dict[str, dict[str, str]] = defaultdict(dict)
        """UID -> reason -> note of the Events about the pod."""

    def before(self, revision: Revision) -> None:
        """Remember what is true before a revision that begins to delete a pod that runs."""
        pod = self._state.pods.get(revision.name) if revision.kind is Kind.POD else None
        if pod is not None and pod.uid in self._deleted and pod.uid not in self._deletions and pod.runs:
            raw = revision.object
            if raw is None or "deletionTimestamp" in raw["metadata"] or is_disrupted(raw):
                self._deletions[pod.uid] = self._deletion(pod, revision.number)

    def take(self, event: Object) -> None:
        """Take an Event."""
        self._recorded[event["involvedObject"].get("uid", "")][event["reason"]] = event.get("message") or ""

    def end(self) -> Iterator[Finding]:
        """Yield what contradicts the rules."""
        for deletion in self._deletions.values():
            yield from self._judged(deletion)
        by_place: dict[tuple[str, str], list[Eviction]] = defaultdict(list)
        for eviction in self._evictions():
            by_place[eviction.preemptor, eviction.node].append(eviction)
        for (preemptor, _), evictions in by_place.items():
            yield from self._too_many_sets(preemptor, sorted(evictions, key=lambda each: each.at))

    # --- reasons ----------------------------------------------------------------------------------------------

    def _deletion(self, pod: Pod, number: int) -> Deletion:
        state = self._state
        waiting = [each for each in state.ever.values() if self._has_waited(each) and each.priority > pod.priority]
        changed = state.now - state.node_changed.get(pod.node, float("-inf")) <= self._lag
        return Deletion(
            pod=pod,
            number=number,
            gang_had_formed=state.has_formed(pod),
            had_failed_card=self._has_failed_card(pod),
            helped=frozenset(
                each.key for each in waiting if not each.request.is_simple or self._would_fit(each, pod.node)
            ),
            may_help_any=bool(waiting) and changed,
        )

    def _has_waited(self, pod: Pod) -> bool:
        """Return whether a pod waits, or did so shortly before."""
        return pod.waits or (pod.is_ours and self._state.now - pod.waited_until <= self._lag)

    def _would_fit(self, pod: Pod, node: str) -> bool:
        """Return whether a node would take a pod without the pods of lower priorities, and those bound just now."""
        since = self._state.now - self._lag
        rooms = self._state.rooms(
            without=lambda each: each.priority < pod.priority or each.bound_at >= since, grace=self._lag
        )
        return node in rooms and rooms[node].fits(pod.request)

    def _has_failed_card(self, pod: Pod) -> bool:
        listed = self._state.devices.get(pod.node, {}).get("spec", {}).get("devices") or ()
        healthy = {card["id"] for card in listed if card.get("health")}
        return not set(fitting.holds(pod.raw) or {}) <= healthy

    def _judged(self, deletion: Deletion) -> Iterator[Finding]:
        pod, recorded = deletion.pod, self._recorded[deletion.pod.uid]
        if "PodGroupTimedOut" in recorded:
            is_true, why = not deletion.gang_had_formed, "its gang had formed"
        elif "DeviceFailed" in recorded:
            is_true, why = deletion.had_failed_card, "its card was healthy"
        elif "Preempted" in recorded or pod.disrupted_at is not None:
            by, _ = _preemptor(recorded.get("Preempted", ""))
            helped = deletion.helped & {by} if by else deletion.helped
            is_true = bool(helped) or deletion.may_help_any
            why = f"{by or 'a pod'} did not wait, or would not fit on {pod.node} without the pods of lower priorities"
        else:
            is_true, why = "Moved" in recorded, "no Event or condition has a reason"
        if not is_true:
            text = f"it ran on {pod.node}, and Berth deleted it: {why}"
            yield Finding(kind=FindingKind.HARMED, revision=deletion.number, about=pod.key, text=text)

    # --- sets of victims --------------------------------------------------------------------------------------

    def _evictions(self) -> Iterator[Eviction]:
        controllers = {pod.key: pod.controller for pod in self._state.ever.values()}
        for uid in self._deleted & set(self._state.ever):
            victim = self._state.ever[uid]
            by, node = _preemptor(self._recorded[uid].get("Preempted", ""))
            if victim.disrupted_at is not None and by:
                yield Eviction(
                    victim=victim, preemptor=controllers.get(by, by), about=by, node=node, at=victim.disrupted_at
                )

    def _too_many_sets(self, preemptor: str, evictions: Sequence[Eviction]) -> Iterator[Finding]:
        """Yield the first set of victims for a preemptor and a node that came too soon after two lost ones.

        Each pod of Berth's with a higher priority that came there meanwhile, or that the node was nominated for,
        explains one set, which does not count. One more may be lost for each other pod of the preemptor that waits at
        the same time.
        """
        binds = [pod.bound_at for pod in self._state.ever.values() if pod.controller == preemptor and pod.node]
        displacers = self._displacers(preemptor, evictions[0].node)
        lost, began, ends = 0, evictions[0].at, evictions[0].at
        for each in evictions:
            is_same = each.victim.bound_at <= began and each.at - ends <= SAME_SET
            if is_same or each.at < ends:  # a set whose victims have not all gone is not lost yet
                ends = max(ends, each.victim.gone_at or each.at)
                continue
            # It had taken a place that was freed: that set of victims was lost, unless the preemptor was bound.
            displacer = next((at for at in displacers if began <= at <= each.at), None)
            if any(began <= at <= each.at for at in binds):
                lost = 0
            elif displacer is None:
                lost += 1
            else:
                displacers.remove(displacer)
            others = self._waiting_at(preemptor, each.at) - {each.about}
            if lost >= LOST_SETS + len(others) and each.at - ends < self._pause:
                text = f"{lost} sets of victims on {each.node} were lost, the next began {each.at - ends:.1f} s later"
                yield Finding(kind=FindingKind.EVICTED_AGAIN, revision=0, about=each.about, text=text)
                return
            began, ends = each.at, each.victim.gone_at or each.at

    def _waiting_at(self, preemptor: str, at: float) -> set[str]:
        """Return the keys of a preemptor's pods that had no node at a moment."""
        pods = (pod for pod in self._state.ever.values() if pod.controller == preemptor and pod.created <= at)
        return {pod.key for pod in pods if at < (pod.bound_at if pod.node else pod.gone_at or math.inf)}

    def _displacers(self, preemptor: str, node: str) -> list[float]:
        """Return when the node was nominated for pods of Berth's with a higher priority than the preemptor's.

        For a pod that came there without a nomination, it is when the pod was bound. Another node may have been chosen
        later for the others.
        """
        pods = self._state.ever.values()
        priority = max((pod.priority for pod in pods if pod.controller == preemptor), default=0)
        came = []
        for pod in pods:
            if pod.is_ours and pod.priority > priority:
                nominated = [at for name, at in pod.nominations if name == node]
                came += nominated or ([pod.bound_at] if pod.node == node else [])
        return sorted(came)


def _preemptor(note: str) -> tuple[str, str]:
    """Return the pod and the node that the note of an Event Preempted names."""
    match = re.match(r"Preempted by (?:pod|podgroup) (\S+) on node ([a-z0-9.-]+)", note)
    return (match[1], match[2]) if match else ("", "")
