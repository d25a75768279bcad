"""The PodGroup object of Kubernetes' scheduler-plugins: pods that are scheduled all together or not at all.

Berth ships a definition for clusters without one. It accepts everything that the original accepts. Kubeflow's operators
write the spec. The scheduler of the group writes the status.
"""

from typing import Annotated

from pydantic import Field

from berth_api.device import Model, Quantity

MAX_MEMBERS = 2**31 - 1
Count = Annotated[int, Field(ge=0, le=MAX_MEMBERS)]


class PodGroupSpec(Model):
    """What the scheduler must ensure for the group."""

    min_member: Annotated[int, Field(ge=1, le=MAX_MEMBERS)] | None = None
    """Number of members that must be placed together; with fewer, none is bound."""
    min_resources: Annotated[dict[str, Quantity], Field(max_length=64)] | None = None
    """Not used by Berth, which places each member by its own requests."""
    schedule_timeout_seconds: Annotated[int, Field(ge=-(2**31), le=MAX_MEMBERS)] | None = None
    """Seconds after which a partly bound group is aborted; 0 for the scheduler's default."""


class PodGroupStatus(Model):
    """Progress of the group."""

    phase: Annotated[str, Field(max_length=64)] | None = None
    """Pending, PreScheduling, Scheduling, Scheduled, Running, Finished or Failed."""
    occupied_by: Annotated[str, Field(max_length=4096)] | None = None
    """The workload that owns the members; not written by Berth."""
    scheduled: Count = 0
    """Members that are bound and have not ended."""
    running: Count = 0
    """Members whose containers have started."""
    succeeded: Count = 0
    """Members that have succeeded."""
    failed: Count = 0
    """Members that have failed."""
    schedule_start_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When the group first had enough members."""


class PodGroup(Model):
    """Pods that are scheduled all together or not at all."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()
