"""The fleet file: which nodes a simulation has, and with which devices.

profiles:                    # optional own profiles, in addition to the built-in ones of profiles.py
  mine: {model: NVIDIA Mine, memory: 16Gi}
nodes:
  - names: node-[0-9]        # one name, or a range; node-[00-99] keeps the zeros
    profile: a100            # or a list with one profile per card: [a100, a100, t4]
    gpus: 8
    rdma: 2
    fpga: 0
    unhealthy: [3]           # minors of GPUs
    mig: {0: [1g.10gb, 1g.10gb]}  # minors of GPUs in MIG mode, and the profiles of their instances
    mig_strategy: mixed      # or single, or none
    replicas: 1              # time-slicing replicas of each GPU that is not in MIG mode
    heartbeat: true          # false plays a dead agent: the node's Lease is not renewed
"""

import re
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from berth_agent.vendors.simulated.profiles import BUILT_IN, CardProfile
from berth_api.allocation import mig
from berth_api.device import MAX_INSTANCES, MigStrategy
from berth_api.values import keys
from berth_base import documents
from berth_base.documents import DocumentError

_RANGE = re.compile(r"(?P<head>[^\[\]]*)\[(?P<first>\d+)-(?P<last>\d+)\](?P<tail>[^\[\]]*)")


def _mig_profile(text: str) -> str:
    if not mig.is_profile(text):
        raise ValueError(f"{text} is no MIG profile such as 1g.10gb or 1g.10gb+me")
    return text


MigProfile = Annotated[str, AfterValidator(_mig_profile)]
Count = Annotated[int, Field(ge=0, le=64)]
Others = Annotated[int, Field(ge=0, le=32)]
MAX_NODES: Final = 20_000
"""Nodes of one file. A range of more nodes would fill the memory before anything is published."""


class FleetError(Exception):
    """A fleet file cannot be used. The text shows where and why."""


class _FleetModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeGroup(_FleetModel):
    """Nodes that are alike."""

    names: str
    profile: str | tuple[str, ...] = ()
    gpus: Count | None = None
    rdma: Others = 0
    fpga: Others = 0
    unhealthy: tuple[int, ...] = ()
    mig: dict[int, Annotated[tuple[MigProfile, ...], Field(max_length=MAX_INSTANCES)]] = {}
    mig_strategy: MigStrategy = "mixed"
    replicas: Annotated[int, Field(ge=1, le=100)] = 1
    heartbeat: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.node_names()
        cards = len(self.cards())
        if not self.profile and self.gpus:
            raise ValueError(f"gpus is {self.gpus}, but no profile says which")
        if isinstance(self.profile, tuple) and self.gpus not in {None, cards}:
            raise ValueError(f"gpus is {self.gpus}, but profile lists {cards} cards")
        for field in ("unhealthy", "mig"):
            stray = [minor for minor in getattr(self, field) if not 0 <= minor < cards]
            if stray:
                raise ValueError(f"{field} names minor {stray[0]}, but the node has {cards} GPUs, counted from 0")
        return self

    def cards(self) -> tuple[str, ...]:
        """Return the profile's name of each GPU."""
        return (self.profile,) * (self.gpus or 0) if isinstance(self.profile, str) else self.profile

    def node_names(self) -> list[str]:
        """Return the names, with a range written out."""
        names = [self.names]
        if span := _RANGE.fullmatch(self.names):
            first, last = int(span["first"]), int(span["last"])
            if last - first >= MAX_NODES:
                raise ValueError(f'names: "{span[0]}" is a range of more than {MAX_NODES} nodes')
            width = len(span["first"]) if span["first"].startswith("0") else 0
            names = [f"{span['head']}{number:0{width}d}{span['tail']}" for number in range(first, last + 1)]
        if not names or not all(map(keys.NAME.fullmatch, names)):
            raise ValueError(f'names: "{self.names}" is no node name, nor a range such as node-[0-9]')
        return names


class _FleetFile(_FleetModel):
    profiles: dict[str, CardProfile] = {}
    nodes: tuple[NodeGroup, ...] = ()


class SimulatedFleet:
    """A fleet file that was read: what each node is like."""

    def __init__(self, file: _FleetFile) -> None:
        self.profiles = BUILT_IN | file.profiles
        self.nodes: dict[str, NodeGroup] = {}
        for index, group in enumerate(file.nodes):
            where = f"nodes[{index}]"
            for profile in group.cards():
                if profile not in self.profiles:
                    raise FleetError(f'{where}: no profile "{profile}"; there are {", ".join(sorted(self.profiles))}')
            if len(vendors := {self.profiles[profile].vendor for profile in group.cards()}) > 1:
                raise FleetError(f"{where}: cards of {' and '.join(sorted(vendors))}; a node has cards of one vendor")
            for minor in group.mig:
                if not self.profiles[profile := group.cards()[minor]].mig:
                    raise FleetError(f"{where}.mig.{minor}: {profile} is not capable of MIG")
            for name in group.node_names():
                if name in self.nodes:
                    raise FleetError(f"{where}: {name} is there twice")
                self.nodes[name] = group
            if len(self.nodes) > MAX_NODES:
                raise FleetError(f"{where}: more than {MAX_NODES} nodes in all")


def load(path: Path) -> SimulatedFleet:
    """Read a fleet file.

    Raises:
        FleetError: the file is missing or wrong.
    """
    try:
        return SimulatedFleet(_FleetFile.model_validate(documents.read(path.read_bytes()) or {}))
    except OSError as error:
        raise FleetError(f"{path}: {error.strerror}") from error
    except DocumentError as error:
        raise FleetError(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        mistakes = []
        for mistake in error.errors():
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in mistake["loc"])
            mistakes.append(f"{where.removeprefix('.') or 'fleet'}: {mistake['msg'].removeprefix('Value error, ')}")
        raise FleetError(f"{path}: {'; '.join(mistakes)}") from error
    except FleetError as error:
        raise FleetError(f"{path}: {error}") from error
