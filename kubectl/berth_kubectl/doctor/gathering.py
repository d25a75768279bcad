"""Read the data that the checks need. Data that may not be read or that the API server does not serve is noted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from berth_api import names
from berth_kubectl.doctor import devices, programs, rejected, waiting
from berth_kubectl.doctor.claim_driver import ROLE as DRIVER_ROLE
from berth_kubectl.doctor.cluster import ALLOCATING_ROLE, API_GROUPS, TAINTING_ROLE, plugin_of
from berth_kubectl.doctor.facts import Facts, Installation
from berth_kubectl.errors import ReadError
from berth_kubectl.reading.objects import Object, name_of
from berth_kubectl.reading.resources import (
    ADMISSION,
    API_SERVICES,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DAEMON_SETS,
    DEFINITIONS,
    DEPLOYMENTS,
    DEVICES,
    ENDPOINT_SLICES,
    LEADER_LEASES,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    SERVICES,
)
from berth_kubectl.reading.session import ObjectReader, Source
from berth_kubectl.reading.views import WAITING
from berth_kubectl.transport.proxy import server_time
from berth_kubectl.transport.request import Request

VERSION: Final = Request(path="/version")
TAINT_RULES: Final = [Request(path=f"/apis/resource.k8s.io/{version}") for version in ("v1", "v1beta2")]
"""Discovery of the versions with DeviceTaintRules, which each user may read."""


def sources(place: Installation) -> dict[str, Source]:
    """Return the lists that the checks read, by the names that `Check.needs` has."""
    return {
        "leaderleases": Source(resource=LEADER_LEASES, namespace=place.namespace),
        "leases": Source(resource=LEASES, namespace=place.lease_namespace),
        "deployments": Source(resource=DEPLOYMENTS, namespace=place.namespace),
        "services": Source(resource=SERVICES, namespace=place.namespace),
        "agents": Source(
            resource=PODS, namespace=place.agent_namespace, labels=f"app.kubernetes.io/name={programs.AGENT}"
        ),
        "waiting": Source(resource=PODS, fields=WAITING),
        "failed": Source(resource=PODS, fields="status.phase=Failed", limit=rejected.READ),
        "endpointslices": Source(resource=ENDPOINT_SLICES, namespace=place.namespace),
        **{
            resource.plural: Source(resource=resource)
            for resource in (
                *(DEVICES, NODES, NAMESPACES, RESOURCE_QUOTAS, DAEMON_SETS, DEFINITIONS, API_SERVICES),
                *(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
                *ADMISSION.values(),
            )
        },
    }


@dataclass(slots=True, kw_only=True)
class _Lists:
    read: dict[str, Sequence[Object]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    unserved: set[str] = field(default_factory=set)

    def take(self, name: str, source: Source, answer: Any) -> None:
        """Take the answer to one request."""
        if not isinstance(answer, ReadError):
            self.read[name] = [*self.read.get(name, ()), *answer["items"]]
        elif answer.is_missing:
            self.read.setdefault(name, ())
            self.unserved.add(name)
        elif answer.status:
            self.unread[name] = str(source.refused(answer))
        else:
            raise answer


def gather(api: ObjectReader, place: Installation, *, definitions: Sequence[Object], version: str) -> Facts:
    """Return what the checks need.

    Raises:
        ReadError: the API server does not answer.
    """
    wanted, lists = sources(place), _Lists()
    *answers, served = api.get_all([*(source.request for source in wanted.values()), VERSION])
    for (name, source), answer in zip(wanted.items(), answers, strict=True):
        lists.take(name, source, answer)
    if "daemonsets" in lists.unread:
        lists.unread["pods"] = lists.unread["daemonsets"]
    else:
        # The pods of DaemonSets that run device plugins, by the labels of their selectors, without expressions.
        of_plugins = []
        for daemon_set in lists.read["daemonsets"]:
            spec = daemon_set["spec"]
            if any(map(plugin_of, spec["template"]["spec"].get("containers") or ())):
                labels = (spec["selector"].get("matchLabels") or {}).items()
                selector = ",".join(f"{name}={value}" for name, value in labels)
                namespace = daemon_set["metadata"]["namespace"]
                of_plugins.append(Source(resource=PODS, namespace=namespace, labels=selector))
        lists.read["pods"] = ()
        for source, answer in zip(of_plugins, api.get_all([source.request for source in of_plugins]), strict=True):
            lists.take("pods", source, answer)
    # ResourceClaims are read if the installation may allocate them, and slices if its agents are drivers.
    by_role = [
        ("resourceclaims", ALLOCATING_ROLE, Source(resource=RESOURCE_CLAIMS)),
        ("resourceslices", DRIVER_ROLE, Source(resource=RESOURCE_SLICES, fields=f"spec.driver={names.DRA_DRIVER}")),
        ("starting", DRIVER_ROLE, Source(resource=PODS, fields="status.phase=Pending,spec.nodeName!=")),
    ]
    for name, role, source in by_role:
        lists.read[name] = ()
        if "clusterroles" in lists.unread:
            lists.unread[name] = lists.unread["clusterroles"]
        elif role in map(name_of, lists.read["clusterroles"]):
            [answer] = api.get_all([source.request])
            lists.take(name, source, answer)
    # What pods requested that may hold, alone or as a gang, several slices of one card.
    of_slices = [
        Source(resource=PODS, namespace=namespace, fields=f"metadata.name={name}")
        for namespace, name in devices.pods_with_slices(lists.read.get("devices", ()))
    ]
    for source, answer in zip(of_slices, api.get_all([source.request for source in of_slices]), strict=True):
        lists.take("sliced", source, answer)
    now = server_time(api.server_date)
    # One bound pod of each scheduler that waiting pods name shows that the scheduler runs, or did.
    for name in waiting.left(lists.read.get("waiting", ()), now):
        source = Source(resource=PODS, fields=f"spec.schedulerName={name},spec.nodeName!=", limit=1)
        [answer] = api.get_all([source.request])
        lists.take("bound", source, answer)
    return Facts(
        now=now,
        lists=lists.read,
        unread=lists.unread,
        unserved=frozenset(lists.unserved),
        unanswered=_unanswered(api, lists.read.get("apiservices", ())),
        taint_rules=_serves_taint_rules(api, lists.read.get("clusterroles", ())),
        definitions=definitions,
        version=version,
        server_version={} if isinstance(served, ReadError) else served,
        installation=place,
    )


def _unanswered(api: ObjectReader, services: Sequence[Object]) -> dict[str, str]:
    """Ask each aggregated API of Berth's: the conditions of an APIService may be half a minute old."""
    own = [service for service in services if service["spec"].get("group") in API_GROUPS]
    requests = []
    for service in own:
        group, version = service["spec"]["group"], quote(str(service["spec"].get("version")), safe="")
        # What the aggregated API has.
        requests.append(Request(path=f"/apis/{group}/{version}"))
    answers = zip(own, api.get_all(requests), strict=True)
    return {name_of(service): str(why) for service, why in answers if isinstance(why, ReadError) and why.is_unavailable}


def _serves_taint_rules(api: ObjectReader, roles: Sequence[Object]) -> bool | None:
    """Ask whether DeviceTaintRules are served, if an installation keeps some; None if it does not, or no answer."""
    if TAINTING_ROLE not in map(name_of, roles):
        return None
    answers = api.get_all(TAINT_RULES)
    if any(isinstance(answer, ReadError) and not answer.is_missing for answer in answers):
        return None
    resources = [
        resource for answer in answers if not isinstance(answer, ReadError) for resource in answer["resources"]
    ]
    return any(resource["name"] == "devicetaintrules" for resource in resources)
