"""The LeaderLease object: which operator leads, and in which term.

Namespaced; written by the candidates of one operator instance and read by the API server, as the parameter of the
policies that refuse Bindings of any other term (docs/decisions/0002-fencing.md). A kind of our own and not a Lease:
an API server keeps the parameters of a built-in kind across the deletion of the policies that name them.
"""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from berth_api.device import Model, Text

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]

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
    """Number of the current term, or of the last one if there is no leader; 0 before the first. Bindings carry it."""
    holder_identity: Text | None = None
    """The process that leads; empty or absent if none does."""
    lease_duration_seconds: Annotated[int, Field(ge=1)] | None = None
    """Seconds after the last renewal that another candidate saw, before it may take over."""
    acquire_time: Time | None = None
    """When the term began, by the holder's clock; nothing compares it."""
    renew_time: Time | None = None
    """When the holder last renewed the term, by its own clock; nothing compares it."""


class LeaderLease(Model):
    """Which operator leads, and in which term."""

    spec: LeaderLeaseSpec
