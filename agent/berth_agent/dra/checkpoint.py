"""The claims that are prepared, in a file that outlives the agent.

A claim is in the file before anything is done for it, and until everything is undone. The file is on the disk before
the call goes on: after a crash of the machine, kubelet still knows the claim. Any version of the agent reads the file
of any other version: unknown fields are ignored, and an entry that is damaged costs only itself. What is damaged is
kept in another file.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import structlog
from pydantic import StringConstraints, TypeAdapter, ValidationError

from berth_agent import files

NAME: Final = "claims.json"
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
DRAFT: Final = ".claims.new"
ASIDE: Final = ".rejected"

Uid = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]{1,64}$")]
"""A UID that is safe in the name of a file."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """A device of a prepared claim."""

    request: str
    device: str
    """Its name in the slice."""
    id: str
    """UUID."""
    card: str
    """UUID of its card."""
    admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClaim:
    """A prepared claim."""

    namespace: str
    name: str
    boot: str
    """The boot in which it was prepared last."""
    devices: tuple[HeldDevice, ...]


_CLAIM: Final = TypeAdapter(HeldClaim)
UID: Final[TypeAdapter[str]] = TypeAdapter(Uid)


class ClaimCheckpoint:
    """The file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def load(self) -> dict[str, HeldClaim]:
        """Return the prepared claims by UID; without those that are damaged, with a log line.

        Raises:
            OSError: the disk does not say which there are.
        """
        try:
            content = files.read(self._path)
        except FileNotFoundError:
            return {}
        try:
            entries: Mapping[str, Any] = orjson.loads(content)["claims"]
            pairs = list(entries.items())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._keep(content)
            _log.error(
                "the checkpoint of claims is damaged; claims are known again when kubelet prepares them",
                path=str(self._path),
                error=str(error),
                kept_as=self.aside.name,
            )
            return {}
        claims = {}
        for uid, entry in pairs:
            try:
                claims[UID.validate_python(uid)] = _CLAIM.validate_python(entry)
            except ValidationError as error:
                _log.error("an entry of the checkpoint of claims is damaged", uid=uid, error=str(error))
        if len(claims) < len(pairs):
            self._keep(content)
        return claims

    @property
    def aside(self) -> Path:
        """Return where a damaged file is kept until a person removes it."""
        return self._path.with_name(NAME + ASIDE)

    def _keep(self, content: bytes) -> None:
        """Keep a damaged file: the next save replaces it."""
        files.write(self.aside, content, mode=MODE, draft=DRAFT)

    def save(self, claims: Mapping[str, HeldClaim]) -> None:
        """Write the prepared claims; they are on the disk when this returns.

        Raises:
            OSError: they are not.
        """
        files.make_folder(self._path.parent, mode=FOLDER_MODE, parents=True)
        content = {"version": 1, "claims": {uid: asdict(claim) for uid, claim in claims.items()}}
        files.write(self._path, orjson.dumps(content), mode=MODE, draft=DRAFT, sync=True)
