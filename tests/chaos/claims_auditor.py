"""Audit which pod or claim holds which card, over every revision of pods and ResourceClaims, in the order of etcd.

The auditor shares no code with the audited programs, reads objects as plain JSON, and identifies cards only by UUID. A
pod's UUIDs come from its allocation, and a claim's UUIDs from the ResourceSlices. It is a pure function of the history.
`python -m tests.chaos.claims_auditor FILE POOL…` audits a recorded history again. The pools are Berth's.

The rules hold at every revision:

* no revision of an object is missing, and no device of a slice becomes another card;
* pods that exist and have not ended hold at most a whole card of each UUID, and a claim holds its cards alone;
* a pod is bound once each of its claims is allocated on its node, and reserved for it;
* node, allocation by name and devices of a claim never change, except that a claim is deallocated;
* other schedulers allocate nothing in Berth's pools (`OTHER`), unless their claims tolerate the taint (`CONTENDER`);
* as long as a contender's claim holds a device of a pool, Berth gives nothing of the pool, by name or by claim;
* at the end no claim has an allocation or reservation of a pod that is gone, nor a finalizer without one.

Effects of two schedulers in one pool (docs/claims.md, "Two schedulers in one pool") are counted separately, only for
claims of contenders:

* `withdrawn`: their claim is written first, and Berth gives up its own. If its pod is bound, this is a finding;
* `interleaved`: their claim is written soon after Berth's, and both keep the device;
* `forgotten`: the other scheduler gives a device to another of its claims. The cause is that one of two claims that had
  the device was deallocated since the device was last free.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos import history
from tests.chaos.auditor import ALLOCATION, GANG, WHOLE, has_ended, held_cards
from tests.chaos.findings import Finding, FindingKind
from tests.chaos.history import Kind, Revision, Versions

SCHEDULER: Final = "audit.example.com/scheduler"
"""Label of the claims of another scheduler, with one of these two values."""
OTHER: Final = "other"
CONTENDER: Final = "contender"

OF_CLASS: Final = "audit.example.com/card"
"""The extended resource that a DeviceClass provides."""

Object = Mapping[str, Any]
DeviceKey = tuple[str, str, str]
"""Driver, pool and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the auditor has to know of a run."""

    pools: frozenset[str] = frozenset()
    """Names of the pools that are Berth's."""
    unseen: float = 5.0
    """Seconds within which a scheduler may not have seen what another has written."""


@dataclass(slots=True, kw_only=True)
class Pod:
    """A pod as of its last revision."""

    key: str
    uid: str
    node: str = ""
    allocation: str = ""
    held: Mapping[str, Counter[str]] = field(default_factory=dict)
    """UUID -> resource -> hundredths."""
    has_ended: bool = False
    is_evicted: bool = False


@dataclass(slots=True, kw_only=True)
class Claim:
    """A claim as of its last revision."""

    key: str
    scheduler: str = ""
    """`OTHER` or `CONTENDER`; empty for Berth's."""
    devices: frozenset[DeviceKey] = frozenset()
    reserved: frozenset[str] = frozenset()
    """UIDs of pods."""
    finalizers: frozenset[str] = frozenset()
    since: float = 0.0
    """When it was allocated."""
    is_doubtful: bool = False
    """Whether it got a device that a claim of a contender held already: its pod must not be bound before that ends."""


def audit(revisions: Iterable[Revision], limits: Limits) -> list[Finding]:
    """Return everything that contradicts the rules, in the order of the history."""
    auditor = ClaimsAuditor(limits)
    findings = [finding for revision in revisions for finding in auditor.take(revision)]
    return [*findings, *auditor.end()]


class ClaimsAuditor:
    """The state of the cluster at one revision."""

    def __init__(self, limits: Limits) -> None:
        self.counts: Counter[str] = Counter()
        """Pods bound by name and by claim, allocations, and what two schedulers in one pool have done."""
        self._limits = limits
        self._versions = Versions()
        self._pods: dict[str, Pod] = {}
        """`namespace/name` -> pod that exists."""
        self._claims: dict[str, Claim] = {}
        self._cards: dict[DeviceKey, str] = {}
        """Device of a slice -> UUID."""
        self._numbers: dict[str, set[tuple[int, str]]] = defaultdict(set)
        """Node -> minors and UUIDs that its Device has listed at a time."""
        self._by_name: dict[str, dict[str, Pod]] = defaultdict(dict)
        """UUID of a card -> UID -> pod that holds it by name."""
        self._by_claim: dict[str, dict[str, Claim]] = defaultdict(dict)
        """UUID of a card -> claim that holds it, by its key."""
        self._forgotten: set[str] = set()
        """UUIDs of cards that a claim holds, and another one has held at the same time."""
        self._now = 0.0
        self._number = 0

    def take(self, revision: Revision) -> Iterator[Finding]:
        """Yield what one more revision contradicts."""
        self._number, self._now = revision.number, revision.time
        if gap := self._versions.gap(revision):
            yield self._finding(FindingKind.REVISION_MISSING, revision.name, gap)
        if revision.kind is Kind.POD:
            yield from self._pod(revision)
        elif revision.kind is Kind.CLAIM:
            yield from self._claim(revision)
        elif revision.kind is Kind.SLICE and revision.object is not None:
            yield from self._slice(revision.object)
        elif revision.kind is Kind.DEVICE and revision.object is not None:
            listed = revision.object["spec"].get("devices") or ()
            self._numbers[revision.name] |= {(each["minor"], each["id"]) for each in listed}

    def end(self) -> Iterator[Finding]:
        """Yield what is left over at the end of the history."""
        users = {pod.uid for pod in self._pods.values() if not pod.has_ended}
        for claim in self._claims.values():
            if gone := claim.reserved - users:
                yield self._finding(FindingKind.LEFT_OVER, claim.key, f"it is reserved for {sorted(gone)}")
            if claim.devices and not claim.reserved:
                yield self._finding(FindingKind.LEFT_OVER, claim.key, f"it holds {sorted(claim.devices)} for no pod")
            if claim.finalizers and not claim.devices:
                yield self._finding(FindingKind.LEFT_OVER, claim.key, f"it has {sorted(claim.finalizers)}")

    def _slice(self, raw: Object) -> Iterator[Finding]:
        spec = raw["spec"]
        for device in spec.get("devices") or ():
            key = (spec["driver"], spec["pool"]["name"], device["name"])
            card = device["attributes"]["uuid"]["string"]
            if (known := self._cards.setdefault(key, card)) != card:
                yield self._finding(FindingKind.CHANGED, "/".join(key), f"card {known} became {card}")

    # --- pods -------------------------------------------------------------------------------------------------

    def _pod(self, revision: Revision) -> Iterator[Finding]:
        known = self._pods.get(revision.name)
        if (raw := revision.object) is None:
            if known is not None:
                self._release(self._pods.pop(known.key))
            return
        if known is None:
            known = self._pods[revision.name] = Pod(key=revision.name, uid=raw["metadata"]["uid"])
        yield from self._bind(known, raw)
        if not known.is_evicted and _is_evicted(raw):
            known.is_evicted = True
            self.counts["evicted"] += 1
        if has_ended(raw):
            known.has_ended = True
            self._release(known)

    def _release(self, pod: Pod) -> None:
        for card in pod.held:
            self._by_name[card].pop(pod.uid, None)

    def _bind(self, pod: Pod, raw: Object) -> Iterator[Finding]:
        shown = (
            raw["spec"].get("nodeName") or "",
            (raw["metadata"].get("annotations") or {}).get(ALLOCATION, ""),
        )
        if shown == (before := (pod.node, pod.allocation)):
            return
        if any(before):
            yield self._finding(FindingKind.CHANGED, pod.key, f"{before} became {shown}")
        self._release(pod)
        pod.node, pod.allocation = shown
        if pod.node and (claims := list(_claims_of(raw))):
            self.counts["pods by class" if _is_by_class(raw) else "pods by claim"] += 1
            self.counts["of gangs by claim"] += GANG in (raw["metadata"].get("annotations") or {})
            yield from self._uses(pod, claims)
        if pod.allocation:
            self.counts["pods by name"] += 1
            yield from self._named(pod)

    def _named(self, pod: Pod) -> Iterator[Finding]:
        """Charge the cards that a pod has by name."""
        pod.held = held_cards(pod.allocation)
        for entry in json.loads(pod.allocation).get("gpu", ()):
            if (entry["minor"], entry["id"]) not in self._numbers[pod.node]:
                text = f"minor {entry['minor']}, {entry['id']} on {pod.node}"
                yield self._finding(FindingKind.UNKNOWN_CARD, pod.key, text)
        for card in pod.held:
            self._by_name[card][pod.uid] = pod
            yield from self._check(card)
        yield from self._stopped(pod.key, pod.node)

    def _uses(self, pod: Pod, claims: Iterable[str]) -> Iterator[Finding]:
        """Check the claims of a pod that was bound."""
        for name in claims:
            claim = self._claims.get(f"{pod.key.partition('/')[0]}/{name}")
            if claim is None or pod.uid not in claim.reserved or {pool for _, pool, _ in claim.devices} != {pod.node}:
                yield self._finding(FindingKind.NO_CLAIM, pod.key, f"on {pod.node}, {name} is {claim}")
            elif claim.is_doubtful and self._is_shared(claim):
                text = f"on {self._names(claim)} by {claim.key}, which another claim held already"
                yield self._finding(FindingKind.OVERBOOKED, pod.key, text)

    def _is_shared(self, claim: Claim) -> bool:
        """Return whether another claim still holds a device of this one."""
        return any(len(self._by_claim[self._cards[device]]) > 1 for device in claim.devices & self._cards.keys())

    # --- claims -----------------------------------------------------------------------------------------------

    def _claim(self, revision: Revision) -> Iterator[Finding]:
        claim = self._claims.setdefault(revision.name, Claim(key=revision.name))
        raw = revision.object or {"metadata": {}}
        status = raw.get("status") or {}
        claim.scheduler = (raw["metadata"].get("labels") or {}).get(SCHEDULER, claim.scheduler)
        claim.reserved = frozenset(each["uid"] for each in status.get("reservedFor") or ())
        claim.finalizers = frozenset(raw["metadata"].get("finalizers") or ())
        yield from self._allocate(claim, _devices(status))
        if revision.object is None:
            del self._claims[revision.name]

    def _allocate(self, claim: Claim, devices: frozenset[DeviceKey]) -> Iterator[Finding]:
        if devices == (before := claim.devices):
            return
        if before and devices:
            yield self._finding(FindingKind.CHANGED, claim.key, f"{sorted(before)} became {sorted(devices)}")
        self._deallocate(claim)
        claim.devices, claim.since = devices, self._now
        if unknown := [device for device in devices if device not in self._cards]:
            yield self._finding(FindingKind.UNKNOWN_CARD, claim.key, str(unknown))
        for device in devices - {*unknown}:
            self._by_claim[self._cards[device]][claim.key] = claim
            yield from self._check(self._cards[device], claim)
        for pool in {pool for _, pool, _ in devices}:
            yield from self._allocated_in(pool, claim)

    def _deallocate(self, claim: Claim) -> None:
        for card in (self._cards[device] for device in claim.devices if device in self._cards):
            # A slice may list the device only after its claim was seen; that is a finding of its own.
            self._by_claim[card].pop(claim.key, None)
            (self._forgotten.add if self._by_claim[card] else self._forgotten.discard)(card)
        self.counts["withdrawn"] += claim.is_doubtful
        claim.is_doubtful = False

    def _allocated_in(self, pool: str, claim: Claim) -> Iterator[Finding]:
        self.counts[f"allocations of {claim.scheduler or 'Berth'}"] += 1
        if not claim.scheduler:
            yield from self._stopped(claim.key, pool)
        elif claim.scheduler == OTHER and pool in self._limits.pools:
            yield self._finding(FindingKind.NOT_KEPT_AWAY, claim.key, f"pool {pool}")

    # --- rules ------------------------------------------------------------------------------------------------

    def _stopped(self, about: str, pool: str) -> Iterator[Finding]:
        """Check that no other scheduler's claim was to be seen in a pool of Berth of which something was given."""
        seen = [
            claim.key
            for claim in self._claims.values()
            if claim.scheduler and self._now - claim.since > self._limits.unseen
            if pool in self._limits.pools and any(pool == of for _, of, _ in claim.devices)
        ]
        if seen:
            yield self._finding(FindingKind.NOT_STOPPED, about, f"{pool} is used by {', '.join(seen)}")

    def _check(self, card: str, latest: Claim | None = None) -> Iterator[Finding]:
        """Check that a card which `latest`, or a pod by name, has just got is held once."""
        pods, claims = self._by_name[card].values(), self._by_claim[card].values()
        total = sum((pod.held[card] for pod in pods), Counter[str]())
        is_shared_by_name = pods and not claims and all(amount <= WHOLE for amount in total.values())
        if is_shared_by_name or len(pods) + len(claims) == 1 or (latest and self._is_known(latest, card)):
            return
        by = ", ".join([*(f"{pod.key} {dict(pod.held[card])}" for pod in pods), *(claim.key for claim in claims)])
        yield self._finding(FindingKind.OVERBOOKED, card, f"by {by}")

    def _is_known(self, latest: Claim, card: str) -> bool:
        """Return whether two schedulers can have done this, as it is documented; count it."""
        others = [claim for claim in self._by_claim[card].values() if claim is not latest]
        if self._by_name[card] or CONTENDER not in {claim.scheduler for claim in (latest, *others)}:
            return False
        if not latest.scheduler and len(others) == 1:
            latest.is_doubtful = True
            return True
        if latest.scheduler and card in self._forgotten:
            self.counts["forgotten"] += 1
            return True
        is_known = not others[0].scheduler and len(others) == 1 and self._now - others[0].since <= self._limits.unseen
        self.counts["interleaved"] += is_known
        return is_known

    def _names(self, claim: Claim) -> str:
        return ", ".join(self._cards[device] for device in sorted(claim.devices))

    def _finding(self, kind: FindingKind, about: str, text: str) -> Finding:
        return Finding(kind=kind, revision=self._number, about=about, text=text)


def _devices(status: Object) -> frozenset[DeviceKey]:
    """Return the devices that are allocated, without those of admin access."""
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    return frozenset((each["driver"], each["pool"], each["device"]) for each in results if not each.get("adminAccess"))


def _claims_of(pod: Object) -> Iterator[str]:
    """Yield the names of a pod's claims, and of that for its extended resource."""
    made = {
        each["name"]: each.get("resourceClaimName")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses", ())
    }
    for each in pod["spec"].get("resourceClaims") or ():
        yield each.get("resourceClaimName") or made.get(each["name"]) or "(none)"
    if _is_by_class(pod):
        shown = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
        yield shown.get("resourceClaimName") or "(none)"


def _is_by_class(pod: Object) -> bool:
    limits = (each.get("resources", {}).get("limits", {}) for each in pod["spec"].get("containers") or ())
    return any(OF_CLASS in each for each in limits)


def _is_evicted(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "DisruptionTarget" and each["reason"] == "PreemptionByScheduler" for each in conditions)


def main() -> None:
    """Audit the history in a file."""
    auditor = ClaimsAuditor(Limits(pools=frozenset(sys.argv[2:])))
    findings = [each for revision in history.read(Path(sys.argv[1])) for each in auditor.take(revision)]
    findings += auditor.end()
    for each in findings:
        sys.stdout.write(f"{each}\n")
    sys.stdout.write(json.dumps({**auditor.counts, "findings": len(findings)}) + "\n")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
