"""The claims that are prepared, in a file that outlives the agent.

A claim is in the file before anything is done for it, and until everything is undone. The file is on the disk before
the call goes on: after a crash of the machine, kubelet still knows the claim. Any version of the agent reads the file
of any other version: unknown fields are ignored, and an entry that is damaged costs only itself. What is damaged is
kept in another file, and `recovery` finds out what was in it.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
from pydantic import StringConstraints, TypeAdapter, ValidationError

from berth_agent import files
from berth_agent.dra.shares import Share
from berth_agent.files import FileIdentity
from berth_agent.vendor import Placement
from berth_api.names import GPU

NAME: Final = "claims.json"
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
DRAFT: Final = ".claims.new"
ASIDE: Final = ".rejected"

Uid = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]{1,64}$")]
"""A UID that is safe in the name of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """A device of a prepared claim."""

    request: str
    device: str
    """Its name in the slice."""
    id: str
    """UUID; empty while it is not known which card of the node it is, or while it is not made."""
    card: str
    """UUID of its card; empty while it is not known."""
    type: str = GPU
    admin: bool = False
    partition: Placement | None = None
    """Where on its card the driver makes it; None if others made it. It has no id before it is made."""
    share: Share | None = None
    """The claim's share of the device; None for the whole device."""

    @property
    def is_made(self) -> bool:
        """Whether the driver makes it on its card. If its records are lost, its place is not known, only its card."""
        return self.partition is not None or bool(self.card and not self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClaim:
    """A prepared claim."""

    namespace: str
    name: str
    boot: str
    """The boot in which it was prepared last."""
    devices: tuple[HeldDevice, ...]
    """Empty if it is not known which it has."""

    @property
    def title(self) -> str:
        """The claim in messages."""
        return f"ResourceClaim {self.namespace}/{self.name}" if self.name else "a ResourceClaim of an unknown name"

    def is_over(self, boot: str) -> bool:
        """Return whether it is of an earlier boot: no container survives a reboot. An unknown boot is none."""
        return bool(boot and self.boot and self.boot != boot)


_CLAIM: Final = TypeAdapter(HeldClaim)
UID: Final[TypeAdapter[str]] = TypeAdapter(Uid)


class DamagedError(Exception):
    """The file does not say all that is prepared."""

    def __init__(self, message: str, claims: Mapping[str, HeldClaim]) -> None:
        """Set the message, and the claims that it says."""
        super().__init__(message)
        self.claims = dict(claims)


class AbsentError(DamagedError):
    """There is no file: nothing was ever prepared, or the file is lost."""


def dumped(claim: HeldClaim) -> str:
    """Return a claim as JSON, for `parsed`."""
    return orjson.dumps(asdict(claim)).decode()


def parsed(content: str) -> HeldClaim:
    """Return a claim of JSON.

    Raises:
        ValueError: it is none.
    """
    return _CLAIM.validate_json(content)


class ClaimCheckpoint:
    """The file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._known: FileIdentity | None = None
        """The file as it was read or written."""

    def is_changed(self) -> bool:
        """Return whether another program removed or changed the file since it was read or written.

        Raises:
            OSError: the disk does not say.
        """
        return files.identity(self._path) != self._known

    def load(self) -> dict[str, HeldClaim]:
        """Return the prepared claims by UID.

        Raises:
            OSError: the disk does not say which there are.
            AbsentError: there is no file.
            DamagedError: the file is damaged.
        """
        try:
            self._known = files.identity(self._path)
            content = files.read(self._path)
        except FileNotFoundError:
            raise AbsentError(f"{self._path} does not exist", {}) from None
        try:
            entries: Mapping[str, Any] = orjson.loads(content)["claims"]
            pairs = list(entries.items())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{self._path}: {error}", {}) from error
        claims, damage = {}, ""
        for uid, entry in pairs:
            try:
                claims[UID.validate_python(uid)] = _CLAIM.validate_python(entry)
            except ValidationError as error:
                damage = f"{self._path}: entry {uid!r}: {error}"
        if damage:
            raise DamagedError(damage, claims)
        return claims

    def set_aside(self) -> None:
        """Keep the file under another name, too: the next save replaces it. A file that is gone is none to keep.

        Raises:
            OSError: it cannot be kept.
        """
        with contextlib.suppress(FileNotFoundError):
            files.write(self._path.with_name(NAME + ASIDE), files.read(self._path), mode=MODE, draft=DRAFT)

    def save(self, claims: Mapping[str, HeldClaim]) -> None:
        """Write the prepared claims; they are on the disk when this returns.

        Raises:
            OSError: they are not.
        """
        files.make_folder(self._path.parent, mode=FOLDER_MODE, parents=True)
        content = {"version": 1, "claims": {uid: asdict(claim) for uid, claim in claims.items()}}
        self._known = files.write(self._path, orjson.dumps(content), mode=MODE, draft=DRAFT, sync=True)
