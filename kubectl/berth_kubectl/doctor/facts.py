"""The data that was read from a cluster, and which data could not be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from berth_api import names
from berth_kubectl.reading.objects import Object, name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The names that an installation of Berth chose."""

    namespace: str = "berth-system"
    """Of the operator, the webhook and the APIs."""
    agent_namespace: str = names.AGENT_SYSTEM
    lease_namespace: str = names.LEASE_NAMESPACE
    lease: str = "berth-operator"
    """The LeaderLease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One look at a cluster."""

    now: datetime
    """By the API server's clock."""
    lists: Mapping[str, Sequence[Object]]
    """Name of a list (`gathering.sources`) -> its objects; an empty one if the API server does not serve the kind."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Name of a list that may not be read -> why."""
    unserved: frozenset[str] = frozenset()
    """Names of the lists whose kind the API server does not serve."""
    unanswered: Mapping[str, str] = field(default_factory=dict)
    """Name of an APIService of Berth's -> why the API server could not pass on a request."""
    taint_rules: bool | None = None
    """Whether the API server serves DeviceTaintRules; None if that was not asked, or not answered."""
    definitions: Sequence[Object] = ()
    """The definitions as this version has them."""
    version: str = ""
    """Of this program."""
    server_version: Mapping[str, str] = field(default_factory=dict)
    """The API server's `/version`; empty if it could not be read."""
    installation: Installation = Installation()

    @property
    def minor(self) -> int | None:
        """The API server's minor version of Kubernetes 1; None if it is not known."""
        major, minor = (str(self.server_version.get(key) or "").rstrip("+") for key in ("major", "minor"))
        return int(minor) if major == "1" and minor.isdecimal() else None

    def all_of(self, name: str) -> Sequence[Object]:
        """Return the objects of a list."""
        return self.lists.get(name, ())

    @property
    def record(self) -> Mapping[str, Any]:
        """Return what the leader leaves to the next one: the status of its LeaderLease; empty if there is none."""
        return self.by_name("leaderleases").get(self.installation.lease, {}).get("status") or {}

    def by_name(self, name: str) -> dict[str, Object]:
        """Return the objects of a list by their names."""
        return {name_of(obj): obj for obj in self.all_of(name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong."""

    check: str
    object: str
    """What it is about: `node/node-3`."""
    message: str
    fix: str
    """What to type."""


def pods_of_agent(facts: Facts, node: str) -> str:
    """Return the command that shows the agent of a node."""
    namespace = facts.installation.agent_namespace
    return f"kubectl get pods -n {namespace} -o wide --field-selector spec.nodeName={node}"
