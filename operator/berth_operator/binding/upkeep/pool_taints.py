"""Keep other schedulers off Berth's pools of ResourceSlices with a DeviceTaintRule for each driver and pool.

A rule for each card that a pod holds would come too late for a claim that kube-scheduler allocates at the same moment.
A rule for the pool exists before. The owner of the rules is the ClusterRole that grants the right to create them. When
the ClusterRole is deleted, the garbage collector deletes the rules.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_api import names
from berth_client.errors import ApiError, CallError
from berth_client.objects import Object
from berth_client.refusals import is_for_good
from berth_operator.core.fleet.claims.store import EVERY_DRIVER, OwnPools

PERIOD: Final = 15.0
"""Seconds between two checks."""
REFUSED_PERIOD: Final = 60.0
"""The same while a policy, a webhook or the rights refuse the rules."""
OWNER: Final = "berth-claims"
"""Name of the ClusterRole in `manifests/components/claims`."""
TAINT: Final = {"key": names.OWN_POOL, "effect": "NoSchedule"}
VERSIONS: Final = ("v1", "v1beta2")
_GROUP: Final = "resource.k8s.io"
_RBAC: Final = "rbac.authorization.k8s.io/v1"

UNSERVED: Final = (
    "the API server serves no DeviceTaintRules: before Kubernetes 1.37 set the feature gate DRADeviceTaintRules and "
    "--runtime-config=resource.k8s.io/v1beta2=true, or set schedulerName: berth-scheduler in all pods with such claims"
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TaintRuleApi(Protocol):
    """The subset of `ApiClient` that is used here."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Object:
        """Read an object or a list."""

    async def create(self, path: str, body: Mapping[str, Any]) -> Object:
        """Create an object."""

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete an object that still has this UID."""


class PoolTaints:
    """Keeps the rules of one instance for one term."""

    def __init__(
        self, *, api: TaintRuleApi, instance: str, own: Callable[[], OwnPools], leads: Callable[[], bool]
    ) -> None:
        """Create a keeper; `instance` names the LeaderLease, so that instances leave each other's rules alone."""
        self._api, self._instance, self._own, self._leads = api, _digest(instance), own, leads
        self._problem = ""

    async def run(self) -> None:
        """Keep the rules until cancelled."""
        while True:
            pause = PERIOD
            try:
                await self.keep()
            except CallError as error:
                self._report(str(error))
                pause = REFUSED_PERIOD if is_for_good(error) else PERIOD
            await asyncio.sleep(pause)

    async def keep(self) -> None:
        """Delete rules that are not needed or were changed, and create missing rules.

        A right rule without its label stays, because other schedulers would get the pool's devices while it is
        replaced.

        Raises:
            ApiError: the API server refused a call.
            Unreachable: the API server did not answer.
        """
        own = self._own()
        # A selector without criteria selects all devices.
        selectors = [{} if driver == EVERY_DRIVER else {"driver": driver} for driver in sorted(own.drivers)]
        selectors += [{"driver": driver, "pool": pool} for driver, pool in sorted(own.pools)]
        wanted: dict[str, Object] = {}
        for selector in selectors:
            name = f"berth-{_digest(self._instance, *selector.values())}"
            labels = {names.OWN_POOL: self._instance}
            spec = {"deviceSelector": selector, "taint": TAINT}
            wanted[name] = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        if (listed := await self._list(wanted)) is None:
            self._report(UNSERVED if wanted else "")
            return
        path, shown = listed
        right = {name for name, rule in shown.items() if name in wanted and _is_same(rule, wanted[name])}
        others: set[str] = set()
        for name in shown.keys() - right:
            owners = shown[name]["metadata"].get("ownerReferences") or ()
            is_owned = ("ClusterRole", OWNER) in {(owner["kind"], owner["name"]) for owner in owners}
            if not is_owned and not self._is_labelled(shown[name]):
                others.add(name)
        for name in sorted(shown.keys() - right - others):
            if not self._leads():
                continue
            try:
                await self._api.delete(f"{path}/{name}", uid=shown[name]["metadata"]["uid"])
            except ApiError as error:
                if not error.is_missing:
                    raise
        if missing := sorted(wanted.keys() - right - others):
            owner = await self._api.get(f"/apis/{_RBAC}/clusterroles/{OWNER}")
            reference = {"apiVersion": _RBAC, "kind": "ClusterRole", "name": OWNER, "uid": owner["metadata"]["uid"]}
            # Of the version that is served.
            kind = {"apiVersion": f"{_GROUP}/{path.split('/')[3]}", "kind": "DeviceTaintRule"}
            for name in missing:
                if self._leads():
                    metadata = {**wanted[name]["metadata"], "ownerReferences": [reference]}
                    await self._api.create(path, {**wanted[name], **kind, "metadata": metadata})
        self._report("; ".join(f"DeviceTaintRule {name} is not Berth's: delete it" for name in sorted(others)))

    def _is_labelled(self, rule: Object) -> bool:
        return bool((rule["metadata"].get("labels") or {}).get(names.OWN_POOL) == self._instance)

    async def _list(self, wanted: Collection[str]) -> tuple[str, dict[str, Object]] | None:
        """Return the path of the newest version that is served, and by name the rules with our label or a wanted name.

        None if no version is served.
        """
        for version in VERSIONS:
            path = f"/apis/{_GROUP}/{version}/devicetaintrules"
            try:
                listed = await self._api.get(path)
            except ApiError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
            else:
                rules = {rule["metadata"]["name"]: rule for rule in listed["items"]}
                return path, {name: rule for name, rule in rules.items() if name in wanted or self._is_labelled(rule)}
        return None

    def _report(self, problem: str) -> None:
        """Log a problem once, not at each check."""
        if problem and problem != self._problem:
            log.warning("other schedulers are not kept from Berth's pools, will try again", reason=problem)
        self._problem = problem


def _is_same(shown: Object, wanted: Object) -> bool:
    """Return whether a rule has the selector and taint that it should have; the API server adds a time."""
    spec, taint = shown["spec"], shown["spec"]["taint"]
    is_taint = (taint.get("key"), taint.get("effect")) == (TAINT["key"], TAINT["effect"])
    return is_taint and spec.get("deviceSelector") == wanted["spec"]["deviceSelector"]


def _digest(*texts: str) -> str:
    return hashlib.sha256("/".join(texts).encode()).hexdigest()[:16]
