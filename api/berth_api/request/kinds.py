"""Types of devices that plug-ins bring, and how pods ask for them.

`Kinds` is made once, at the start, and handed to whatever reads requests and allocations; nothing changes it, and there
is no other place that knows of them. GPUs, RDMA NICs and FPGAs are built in and need none.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from berth_api import allocation, mig, plugins
from berth_api.request.hints import APPLY_FOR_ALL, NO_HINT, REQUESTS_AS_COUNT, Hint
from berth_api.request.values import CARD, Part, RequestError

Reader = Callable[[Mapping[str, int], Hint], Part]
"""Makes a part of a request of a pod's amounts, by resource name, and its hint for the type; may raise RequestError."""

_RESOURCE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class KindError(ValueError):
    """A type of devices is declared wrongly; the text says what and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """A type of devices.

    Raises:
        KindError: the declaration means nothing.
    """

    name: str
    """As it stands on Devices, in allocations and in hints: `npu`."""
    resources: Mapping[str, int]
    """What pods request -> how much of it is one whole device, a divisor of 100: `{"example.com/npu": 1}`."""
    counted: tuple[str, ...] = ()
    """What is counted on each device beside the hundredths of it, by the name that Devices use: `npu-memory`."""
    reads: Reader | None = None
    """How a request becomes a part; without it, one resource at a time, as NICs and FPGAs are requested."""
    summed: bool = True
    """Whether the Node shows the resources; not where a device plugin of kubelet writes them already."""
    gangs: bool = True
    """Whether members of a pod group may request it."""

    def __post_init__(self) -> None:
        """Check the declaration."""
        if not re.fullmatch(allocation.TYPE, self.name):
            raise KindError(f'type {self.name!r}; allowed are small letters, digits and "-", up to 32, such as npu')
        if not self.resources:
            raise KindError(f"type {self.name} names no resource; allowed is at least one, such as example.com/npu")
        for name, whole in self.resources.items():
            if not _RESOURCE.fullmatch(name) or _is_kubernetes(name):
                raise KindError(f"resource {name!r}; allowed are names such as example.com/npu, not of kubernetes.io")
            if type(whole) is not int or whole < 1 or CARD % whole:
                raise KindError(f"resource {name}: {whole!r} are a whole device; allowed are divisors of {CARD}")
        for name in self.counted:
            if name == self.name or name != allocation.short(name) or name in _OTHERS or mig.is_resource(name):
                raise KindError(f"counted {name!r}; allowed are names of the type's own, without a prefix of Berth's")

    def part(self, amounts: Mapping[str, int], hint: Hint) -> Part:
        """Give what a pod requests of it, by its amounts of these resources.

        Raises:
            RequestError: the amounts have no meaning.
        """
        return self._split(amounts, hint) if self.reads is None else self._read(self.reads, amounts, hint)

    @property
    def all_counted(self) -> tuple[str, ...]:
        """Give everything that is counted on each device, its hundredths first."""
        return (self.name, *self.counted)

    def _read(self, reads: Reader, amounts: Mapping[str, int], hint: Hint) -> Part:
        request = f"{_text(amounts)}: the plug-in of type {self.name}"
        try:
            part = reads(amounts, hint)
            sound = self._is_sound(part)
        except RequestError:
            raise
        except Exception as error:
            # Whatever a stranger's function does wrong is told to who asked for it.
            raise RequestError(f"{request} failed: {plugins.in_one_line(error)}; ask its author") from error
        if not sound:
            raise RequestError(f"{request} made {part} of it; ask its author")
        return part

    def _is_sound(self, part: Part) -> bool:
        """Tell whether this is a part of the type."""
        if not isinstance(part, Part) or part.type != self.name or part.count < 1:
            return False
        amounts = dict(part.amounts)
        return amounts.keys() <= {*self.all_counted} and all(
            type(amount) is int and amount > 0 for amount in amounts.values()
        )

    def _split(self, amounts: Mapping[str, int], hint: Hint) -> Part:
        if len(amounts) > 1:
            raise RequestError(f"{_text(amounts)} is not a request for type {self.name}; allowed is one of them")
        [(name, amount)] = amounts.items()
        whole = self.resources[name]
        if amount > whole and amount % whole:
            allowed = f"1 to {whole} (part of a device) or multiples of {whole}"
            raise RequestError(f"{name}: {amount}; allowed are {allowed}")
        return split(self.name, amount * CARD // whole, hint)


def _is_kubernetes(name: str) -> bool:
    return name.partition("/")[0].endswith("kubernetes.io") or name != allocation.short(name)


def _text(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {amount}" for name, amount in sorted(amounts.items()))


_OTHERS: Final = (allocation.REPLICAS, allocation.FUNCTIONS, *allocation.EXCLUSIVES)


def split(kind: str, amount: int, hint: Hint) -> Part:
    """Give hundredths of devices as a part: of one, or of as many whole ones, unless the hint says otherwise."""
    if amount > CARD:
        return Part(type=kind, count=amount // CARD, amounts=((kind, CARD),))
    if hint.strategy == APPLY_FOR_ALL:
        return Part(type=kind, count=1, amounts=((kind, amount),), every=True)
    if hint.strategy == REQUESTS_AS_COUNT:
        return Part(
            type=kind, count=amount, amounts=((kind, CARD if hint.exclusive == allocation.DEVICE_LEVEL else 1),)
        )
    return Part(type=kind, count=1, amounts=((kind, amount),))


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """All types of devices: the built-in ones, and those added."""

    added: tuple[Kind, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Give the names of all types."""
        return (*allocation.TYPES, *(kind.name for kind in self.added))

    def requested(self, names: Collection[str]) -> Iterator[Kind]:
        """Give the added types of which something is among these resources."""
        return (kind for kind in self.added if not kind.resources.keys().isdisjoint(names))

    def has(self, resource: str) -> bool:
        """Tell whether an added type is requested by this name."""
        # A loop: this is asked for each resource of each pod, and mostly there is no such type.
        for kind in self.added:  # noqa: SIM110
            if resource in kind.resources:
                return True
        return False

    def is_of_plugin(self, resource: str) -> bool:
        """Return whether a device plugin of kubelet offers a resource of an added type."""
        return any(resource in kind.resources and not kind.summed for kind in self.added)

    def parts(self, amounts: Mapping[str, int], hints: Mapping[str, Hint]) -> Iterator[Part]:
        """Give the parts of a request that ask for added types.

        Raises:
            RequestError: an amount has no meaning.
        """
        for kind in self.requested(amounts):
            own_amounts = {name: amount for name, amount in amounts.items() if name in kind.resources}
            yield kind.part(own_amounts, hints.get(kind.name, NO_HINT))


BUILT_IN: Final = Kinds()
"""No others than GPUs, RDMA NICs and FPGAs."""
