"""The LeaderLease object: which operator leads, in which term, and the record for the next leader.

A LeaderLease is namespaced. The candidates of one operator instance write it. The API server reads it as the parameter
of the policies that refuse Bindings of any other term (docs/decisions/0002-fencing.md). A LeaderLease is Berth's own
kind and not a Lease. An API server keeps parameters of a built-in kind even after the policies that name them are
deleted.

The status is not a subresource, because the leader writes it in the request that renews the term. So the record needs
no extra request that could conflict with a renewal, and only the holder of the term can write it.
"""

from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.config import JsonDict

from berth_api.device import Model, Name, Text

VERSION: Final = 1
"""Of the record."""
MAX_RESERVED_NODES: Final = 25
MAX_BACKOFFS: Final = 512
MAX_PLACES: Final = 1000
"""Of all workloads and gangs together. With the other bounds, the object stays below 0.95 MiB even if all names are as
long as Kubernetes allows."""
MAX_PROMISED_GANGS: Final = 250
MAX_LOST_PLACES: Final = 325
MAX_TAKERS: Final = 3
MAX_PREEMPTOR: Final = 320
MAX_UID: Final = 64
MAX_SUCCEEDED_GANGS: Final = 64
MAX_CONTROLLERS: Final = 16
MAX_GANG: Final = 384
MAX_ID: Final = 12
MAX_REFUSED_WRITES: Final = 10
MAX_REFUSED_NAMESPACES: Final = 4
MAX_REFUSED_OBJECT: Final = 320
MAX_REFUSED_MESSAGE: Final = 768

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def _seconds(value: object) -> object:
    if isinstance(value, str):
        return int(datetime.fromisoformat(value).timestamp())
    return round(value) if isinstance(value, float) else value


Moment = Annotated[
    int,
    Field(ge=0, le=253_402_300_799),
    BeforeValidator(_seconds),
    PlainSerializer(lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Whole seconds since 1970; in JSON a time in RFC 3339."""
GangName = Annotated[str, Field(min_length=1, max_length=127)]
"""Of two labels."""
Uid = Annotated[str, Field(min_length=1, max_length=MAX_UID)]

_NEVER_FALLS: JsonDict = {
    "rule": "self.term >= oldSelf.term",
    "message": "spec.term must not decrease",
}
_NEW_HOLDER: JsonDict = {
    "rule": (
        "!has(self.holderIdentity) || self.holderIdentity == '' || self.term > oldSelf.term"
        " || (has(oldSelf.holderIdentity) && self.holderIdentity == oldSelf.holderIdentity)"
    ),
    "message": "a new holderIdentity needs a higher spec.term",
}


class LeaderLeaseSpec(Model):
    """The fields of a Lease, with the same meaning, and the term."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-validations": [_NEVER_FALLS, _NEW_HOLDER]})

    term: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
    """Number of the current term; without a leader, of the last one; 0 before the first. Bindings carry it."""
    holder_identity: Text | None = None
    """The process that leads; empty or absent if none does."""
    lease_duration_seconds: Annotated[int, Field(ge=1)] | None = None
    """Seconds without a renewal, as a candidate observes it, after which the candidate may take over."""
    acquire_time: Time | None = None
    """When the term began, by the holder's clock; nothing compares it."""
    renew_time: Time | None = None
    """When the holder last renewed the term, by its own clock; nothing compares it."""


class ReservedNode(Model):
    """The node reservation of a pod that has waited too long."""

    namespace: Name
    """The pod's namespace."""
    pod: Name
    """The pod's name."""
    uid: Uid
    """The pod's UID."""
    node: Name
    """The reserved node."""
    free: Annotated[int, Field(ge=0)]
    """How many of the devices that the pod requests are free there."""
    since: Moment
    """When a device was last freed for the pod, or when the reservation began."""


class ReservationBackoff(Model):
    """Node reservations that were in vain, of all pods of one controller."""

    namespace: Name
    """The namespace of the pods."""
    owner: Uid
    """The UID of the controller, or of the pod if it has none."""
    count: Annotated[int, Field(ge=0)]
    """How many node reservations were in vain."""
    until: Moment = 0
    """When the next node reservation may begin; absent if it may begin now."""


class PromisedNode(Model):
    """Places on one node."""

    node: Name
    """The node."""
    pods: Annotated[int, Field(ge=1, le=MAX_PLACES)]
    """How many pods have a place there."""


class PromisedPodSet(Model):
    """The promised places of one pod set."""

    name: Name
    """The pod set."""
    nodes: Annotated[list[PromisedNode], Field(max_length=MAX_PLACES)]
    """The nodes."""


class PromisedWorkload(Model):
    """The promised places of one workload of Kueue."""

    uid: Uid
    """The UID of the Workload."""
    pod_sets: Annotated[list[PromisedPodSet], Field(max_length=MAX_PLACES)]
    """The pod sets that have places."""


class JoinedGang(Model):
    """The promised places of pods that join one gang."""

    name: GangName
    """The gang."""
    nodes: Annotated[list[PromisedNode], Field(max_length=MAX_PLACES)]
    """The nodes."""


class PromisedGang(Model):
    """The promised places of pods that a controller creates after others."""

    kind: Annotated[str, Field(min_length=1, max_length=63)]
    """The kind of the gang whose members come first, as messages call it."""
    namespace: Name
    """The gang's namespace."""
    name: GangName
    """The gang's name."""
    since: Moment = 0
    """Since when they are kept; absent in the record of an earlier version."""
    until: Moment
    """When the places are given up."""
    places: Annotated[list[JoinedGang], Field(max_length=MAX_PLACES)]
    """The places, by the gang that the pods join."""


class LostPlace(Model):
    """What one preemptor has lost on one node, or on all nodes together, since it last ran there."""

    preemptor: Annotated[str, Field(max_length=MAX_PREEMPTOR)]
    """`UID/namespace/kind/name` of a controller, namespace/name of a pod without one, or the key of a gang."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node; absent for all nodes together."""
    count: Annotated[int, Field(ge=0)] = 0
    """How many sets of victims were evicted in vain; absent if it is not known which preemptor lost places."""
    until: Moment = 0
    """When pods may be evicted there again; absent if they may be evicted now."""
    last: Moment = 0
    """When the last place was lost."""
    takers: Annotated[tuple[Text, ...], Field(max_length=MAX_TAKERS)] = ()
    """The schedulers whose pods took the places; none if no pod did."""


class SucceededMembers(Model):
    """Members of one gang that have succeeded and are deleted. They still count for the gang's minimum."""

    gang: Annotated[str, Field(min_length=1, max_length=MAX_GANG)]
    """The gang, as messages call it."""
    count: Annotated[int, Field(ge=1)]
    """How many members."""
    controllers: Annotated[list[Annotated[str, Field(max_length=MAX_ID)]], Field(max_length=MAX_CONTROLLERS)]
    """The ends of the UIDs of the controllers that have had members of the gang; an empty text for none. With a member
    of another controller, a gang begins again."""


class RefusedWrite(Model):
    """Writes of the leader that the API server refuses until a person acts. The next leader does not read them."""

    verb: Text
    """The verb, as RBAC calls it."""
    resource: Text
    """The resource with its group and subresource, such as `devices.berth.dev/status`."""
    code: Annotated[int, Field(ge=400, le=599)]
    """The HTTP status of the answers."""
    refuser: Text = ""
    """The policy or webhook that refuses the writes, such as `webhook/NAME`, or `authorization`; absent if the API
    server names none."""
    object: Annotated[str, Field(max_length=MAX_REFUSED_OBJECT)] = ""
    """One of the objects: its name, namespace/name, or the namespace in which it was to be created."""
    namespaces: Annotated[list[Name], Field(max_length=MAX_REFUSED_NAMESPACES)] = Field(default_factory=list)
    """Some of the namespaces of the objects; absent if they have none."""
    since: Moment
    """When the first of the writes was refused."""
    last: Moment
    """When the last of the writes was refused."""
    message: Annotated[str, Field(max_length=MAX_REFUSED_MESSAGE)]
    """What the API server answered about the object."""


class LeaderLeaseStatus(Model):
    """The record: what the next leader needs and cannot read from other objects, and what people look for."""

    version: Annotated[int, Field(ge=1)]
    """Version of the form of the record. A leader that does not know the version begins without a record."""
    node_reservations: Annotated[list[ReservedNode], Field(max_length=MAX_RESERVED_NODES)] = Field(default_factory=list)
    """The node reservations."""
    reservation_backoffs: Annotated[list[ReservationBackoff], Field(max_length=MAX_BACKOFFS)] = Field(
        default_factory=list
    )
    """The pods that wait for their next node reservation, because the last one was in vain."""
    promised_places: Annotated[list[PromisedWorkload], Field(max_length=MAX_PLACES)] = Field(default_factory=list)
    """The promised places of pods that do not exist yet."""
    promised_gangs: Annotated[list[PromisedGang], Field(max_length=MAX_PROMISED_GANGS)] = Field(default_factory=list)
    """The promised places of pods that controllers create after others."""
    lost_places: Annotated[list[LostPlace], Field(max_length=MAX_LOST_PLACES)] | None = None
    """The places that evictions freed and other pods took; absent if they are not known."""
    succeeded_members: Annotated[list[SucceededMembers], Field(max_length=MAX_SUCCEEDED_GANGS)] = Field(
        default_factory=list
    )
    """The members of gangs that have succeeded and are deleted."""
    refused_writes: Annotated[list[RefusedWrite], Field(max_length=MAX_REFUSED_WRITES)] = Field(default_factory=list)
    """The writes that the API server refuses."""


class LeaderLease(Model):
    """Which operator leads, in which term, and what it leaves to the next leader."""

    spec: LeaderLeaseSpec
    status: LeaderLeaseStatus | None = None
