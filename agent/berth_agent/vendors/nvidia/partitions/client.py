"""Calls the process that makes partitions, as the agent does. `server` describes the socket."""

import asyncio
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError

from berth_agent.vendor import (
    PartitionableCard,
    PartitionCards,
    PartitionProfile,
    Placement,
    RefusedError,
    UnansweredError,
)
from berth_agent.vendors.nvidia.partitions.server import NAME

PATIENCE: Final = 30.0
"""Seconds for a call, with the wait for earlier ones. The process tries up to 15 s to change what is in use; kubelet
waits 45 s."""
MAX_ANSWER: Final = 4 << 20
"""Bytes. The list of 64 cards takes less than a tenth."""


class _Made(BaseModel):
    profile: int
    start: int
    size: int
    key: str

    @property
    def placement(self) -> Placement:
        return Placement(profile=self.profile, start=self.start, size=self.size)


class _Card(BaseModel):
    card: str
    mig: bool
    changes_mode_at_once: bool = Field(alias="changesModeAtOnce")
    profiles: list[PartitionProfile]
    instances: list[_Made]


class _Cards(BaseModel):
    cards: list[_Card]
    problems: list[str]


class _Device(BaseModel):
    device: str = Field(pattern=r"^MIG-[0-9A-Za-z/-]{1,80}$")


M = TypeVar("M", bound=BaseModel)


class PartitionClient:
    """The partitions of this node. The process serves one call at a time, so the client sends one at a time."""

    def __init__(self, folder: Path) -> None:
        """Set the folder of the socket."""
        self._path = folder / NAME
        self._lock = asyncio.Lock()

    async def list(self) -> PartitionCards:
        """Return the cards on which partitions can be made.

        Raises:
            RefusedError: the process does not answer, or NVML does not answer it.
        """
        answer = _checked(_Cards, await self._call(call="list"))
        return PartitionCards(
            cards=tuple(
                PartitionableCard(
                    card=card.card,
                    is_partitioned=card.mig,
                    changes_at_once=card.changes_mode_at_once,
                    profiles=tuple(card.profiles),
                    made={made.key: made.placement for made in card.instances if made.key},
                    foreign=tuple(made.placement for made in card.instances if not made.key),
                )
                for card in answer.cards
            ),
            problems=tuple(answer.problems),
        )

    async def make(self, key: str, *, card: str, placement: Placement) -> str:
        """Make a partition, or complete it, and return the UUID of its MIG device.

        Raises:
            RefusedError: it is not complete. The same call completes it, and `destroy` removes what was made of it.
        """
        place = {"profile": placement.profile, "start": placement.start, "size": placement.size}
        return _checked(_Device, await self._call(call="make", key=key, card=card, **place)).device

    async def destroy(self, key: str) -> None:
        """Destroy a partition; there may be none of this key.

        Raises:
            RefusedError: it may still be there.
        """
        await self._call(call="destroy", key=key)

    async def clear(self, card: str) -> None:
        """Turn MIG mode off, so that a pod can have the whole card.

        Raises:
            RefusedError: it may still be on.
        """
        await self._call(call="clear", card=card)

    async def _call(self, **request: Any) -> dict[str, Any]:
        try:
            async with asyncio.timeout(PATIENCE), self._lock:
                answer = orjson.loads(await self._exchange(orjson.dumps(request) + b"\n"))
        except TimeoutError as error:
            raise UnansweredError(
                f"the process that makes partitions did not answer within {PATIENCE:.0f} s"
            ) from error
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
            raise UnansweredError(f"the process that makes partitions does not answer: {error}") from error
        if not isinstance(answer, dict):
            raise RefusedError(f"the process that makes partitions answered {answer!r}")
        if "error" in answer:
            raise RefusedError(str(answer["error"]))
        return answer

    async def _exchange(self, line: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=MAX_ANSWER)
        try:
            writer.write(line)
            return await reader.readuntil(b"\n")
        finally:
            writer.close()


def _checked(model: type[M], answer: dict[str, Any]) -> M:
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        raise RefusedError(f"the process that makes partitions is of another version: {error}") from error
