"""The amounts of a resource as the user wrote them in a pod's spec, for messages about a request.

A request is checked as the pod's total over its containers, which the user may not have written anywhere. The amounts
are computed only when a request is known to be invalid.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from berth_api import allocation, names
from berth_api.resources import quantity
from berth_api.values import listing

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """An amount at one place of a spec."""

    where: str
    """The place in the words of messages: `container main`."""
    text: str
    """As the user wrote it: memory with its unit, which the API server keeps, and all else as a number."""
    number: int
    """The amount in whole units, rounded up."""
    init: bool = False
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """The requests of a pod, as written in its spec."""

    spec: Object

    def amount(self, name: str, total: int) -> str:
        """Return a resource's amount as the user wrote it, or the total if it is the sum of several amounts."""
        parts = self._parts(name)
        if len(parts) == 1:
            return parts[0].text
        return allocation.message_text(allocation.short(name), _sum(parts) or total)

    def origin(self, resources: Sequence[str]) -> str:
        """Return where the amounts of resources are from, as the end of a message; empty if nowhere."""
        origins = {name: text for name in resources if (text := _origin(self._parts(name)))}
        if not origins:
            return ""
        different = dict.fromkeys(origins.values())
        listed = different if len(different) == 1 else (f"{name}: {text}" for name, text in origins.items())
        return f" ({'; '.join(listed)})"

    def _parts(self, name: str) -> Sequence[Amount]:
        """Return the amounts that make up the pod's total of a resource: one alone if it exceeds all that is counted.

        Containers run together; an init container runs with the sidecars before it (`resources.combined`).
        """
        sidecars: list[Amount] = []
        running: list[Amount] = []
        peak: list[Amount] = []
        for part in _amounts(self.spec, name):
            if part.sidecar:
                sidecars.append(part)
            elif part.init:
                peak = max(peak, [*sidecars, part], key=_sum)
            else:
                running.append(part)
        needed = max([*sidecars, *running], peak, key=_sum) + list(_overhead(self.spec, name))
        largest = max(needed, key=lambda part: part.number, default=None)
        return [largest] if largest is not None and largest.number >= quantity.MAX else needed


NOTHING_WRITTEN: Final = Written({})
"""Stands for a request with an unknown spec: amounts are quoted as numbers."""


def _origin(parts: Sequence[Amount]) -> str:
    if not parts:
        return ""
    first, *others = parts
    if not others:
        return first.where
    return f"the sum of {listing.first_of((f'{part.text} in {part.where}' for part in parts), separator=' and ')}"


def _sum(parts: Sequence[Amount]) -> int:
    return sum(part.number for part in parts)


def _amounts(spec: Object, name: str) -> Iterator[Amount]:
    """Yield the containers' amounts of a resource, without zeros. Init containers come first."""
    for kind, what in (("initContainers", "init container"), ("containers", "container")):
        for container in spec.get(kind) or ():
            text = ((container.get("resources") or {}).get("requests") or {}).get(name, 0)
            if number := quantity.parse(text):
                init = kind == "initContainers"
                sidecar = init and container.get("restartPolicy") == "Always"
                where = f"{what} {container.get('name', '')}"
                yield Amount(where=where, text=_text(name, text), number=number, init=init, sidecar=sidecar)


def _overhead(spec: Object, name: str) -> Iterator[Amount]:
    text = (spec.get("overhead") or {}).get(name, 0)
    if number := quantity.parse(text):
        yield Amount(where="spec.overhead", text=_text(name, text), number=number)


def _text(name: str, written: str | int) -> str:
    return str(written) if allocation.short(name) == names.GPU_MEMORY else quantity.exact_text(written)
