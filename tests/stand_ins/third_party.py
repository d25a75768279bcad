"""A device plug-in whose calls fail in the way that a test chooses."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from berth_api.allocation import Grant
from berth_api.request import Kind, Part
from berth_operator.core.allocators import simple
from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.plugins import AllocationPolicy, DevicePlugin
from berth_operator.core.plugins.containment import contained
from berth_operator.core.values.request import PodRequest

NPU = "example.com/npu"
KIND = Kind(name="npu", resources={NPU: 1})
OWNER = "plug-in npu of berth-strange"


class Strange:
    """An allocator like that of NICs, with some calls replaced by a test's, and a score."""

    NAME = "strange"

    def __init__(self, **own: Callable[..., Any]) -> None:
        self.own: dict[str, Callable[..., Any]] = own

    def _call(self, name: str, *arguments: Any) -> Any:
        return self.own.get(name, getattr(simple, name, None) or _no_score)(*arguments)

    def passes(self, fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
        mask: Mask = self._call("passes", fleet, request, part, rows)
        return mask

    def could_pass(self, fleet: Fleet, request: PodRequest, part: Part) -> Mask:
        mask: Mask = self._call("could_pass", fleet, request, part)
        return mask

    def reasons(self, fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
        yield from self._call("reasons", fleet, request, part, rejected)

    def choose(
        self,
        fleet: Fleet,
        row: int,
        request: PodRequest,
        part: Part,
        policy: AllocationPolicy,
        *,
        near: Collection[int] = (),
    ) -> tuple[Grant, ...]:
        assert not near
        grants: tuple[Grant, ...] = self._call("choose", fleet, row, request, part, policy)
        return grants

    def score(self, fleet: Fleet, request: PodRequest, fits: Mask) -> Any:
        return self._call("score", fleet, request, fits)


def _no_score(*_arguments: Any) -> None:
    return None


def fails(*_arguments: Any) -> Any:
    raise ZeroDivisionError("division by zero")


def gives(answer: Any) -> Callable[..., Any]:
    return lambda *_arguments: answer


def plugins(**own: Callable[..., Any]) -> dict[str, DevicePlugin]:
    """Return the plug-in as the operator loads it, with a function for each call that is replaced."""
    code = Strange(**own)
    return {"npu": contained(DevicePlugin(kind=KIND, allocator=code, score=code), OWNER)}
