"""Types of devices and vendors of GPUs that other distributions add, and how pods request them.

`Kinds` is created once, at the start, and passed to all code that reads requests and allocations. GPUs, RDMA NICs and
FPGAs are built in and need no `Kind`. Some vendors of GPUs are built in, too (`amounts.VENDORS`).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from berth_api import allocation, plugins
from berth_api.allocation import mig
from berth_api.request.hints import APPLY_FOR_ALL, NO_HINT, REQUESTS_AS_COUNT, Hint
from berth_api.request.values import CARD, Part, RequestError

Reader = Callable[[Mapping[str, int], Hint], Part]
"""Converts a pod's amounts, by resource name, and its hint for the type to a part; may raise RequestError."""

NVIDIA: Final = "nvidia"
HUAWEI: Final = "huawei"
"""Its device plugin reads annotations of the pod. Kubelet calls the plugin only for Huawei's own resources."""
ALL_VENDORS: Final = "*"
"""Stands for all vendors in the setting `--gpu-vendors`."""

_VENDOR: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_RESOURCE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class KindError(ValueError):
    """The declaration of a device type is invalid. The message names the field and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """A type of devices.

    Raises:
        KindError: the declaration is invalid.
    """

    name: str
    """The name in Devices, allocations and hints: `npu`."""
    resources: Mapping[str, int]
    """Resource that pods request -> its amount for one whole device, a divisor of 100: `{"example.com/npu": 1}`."""
    counted: tuple[str, ...] = ()
    """What is counted on each device in addition to its hundredths, by the name that Devices use: `npu-memory`."""
    reads: Reader | None = None
    """Converts a request to a part. Without it, a pod may request one resource at a time, as for NICs and FPGAs."""
    summed: bool = True
    """Whether Berth writes the resources to the Node; false if a device plugin of kubelet already does."""
    gangs: bool = True
    """Whether members of a pod group may request it."""

    def __post_init__(self) -> None:
        """Check the declaration; see the class."""
        if not re.fullmatch(allocation.TYPE, self.name):
            raise KindError(f'name {self.name!r}; allowed are up to 32 lower-case letters, digits and "-", such as npu')
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
        """Return what a pod requests of this type, by its amounts of these resources.

        Raises:
            RequestError: the amounts are invalid.
        """
        return self._split(amounts, hint) if self.reads is None else self._read(self.reads, amounts, hint)

    @property
    def all_counted(self) -> tuple[str, ...]:
        """Return the names of all that is counted on each device, its hundredths first."""
        return (self.name, *self.counted)

    def _read(self, reads: Reader, amounts: Mapping[str, int], hint: Hint) -> Part:
        request = f"{_text(amounts)}: the plug-in of type {self.name}"
        try:
            part = reads(amounts, hint)
            sound = self._is_sound(part)
        except RequestError:
            raise
        except Exception as error:
            # A third-party function may raise anything; the user of the pod sees it.
            raise RequestError(f"{request} failed: {plugins.in_one_line(error)}; ask its author") from error
        if not sound:
            raise RequestError(f"{request} made {part} of it; ask its author")
        return part

    def _is_sound(self, part: Part) -> bool:
        """Return whether this is a valid part of the type."""
        if not isinstance(part, Part) or part.type != self.name or part.count < 1:
            return False
        amounts = dict(part.amounts)
        return amounts.keys() <= {*self.all_counted} and all(
            type(amount) is int and amount > 0 for amount in amounts.values()
        )

    def _split(self, amounts: Mapping[str, int], hint: Hint) -> Part:
        if len(amounts) > 1:
            text = _text(amounts)
            raise RequestError(f"{text} is not a request for type {self.name}; allowed is one of them", *amounts)
        [(name, amount)] = amounts.items()
        whole = self.resources[name]
        if amount > whole and amount % whole:
            allowed = f"1 to {whole} (part of a device) or multiples of {whole}"
            raise RequestError(f"{name}: {amount}; allowed are {allowed}", name)
        return split(self.name, amount * CARD // whole, hint)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuVendor:
    """A vendor of GPUs, named by an entry point of the group `berth.gpu_resources`.

    Raises:
        KindError: the declaration is invalid.
    """

    name: str
    """The vendor's name in the label of the Device: `example`."""
    cards: tuple[str, ...]
    """The resources of whole cards, as the agent or the vendor's device plugin offers them: `("example.com/gpu",)`."""
    shared: bool = True
    """Whether pods may also request the cards, and shares of them, by Berth's resources, such as `kubernetes.io/gpu`.
    Kubelet knows nothing of these requests, so False if containers get cards from kubelet alone."""

    def __post_init__(self) -> None:
        """Check the declaration; see the class."""
        if not re.fullmatch(_VENDOR, self.name):
            raise KindError(f'vendor {self.name!r}; allowed are lower-case letters, digits and "-", such as example')
        if not isinstance(self.cards, tuple) or not self.cards:
            raise KindError(f"vendor {self.name}: cards {self.cards!r}; allowed is a tuple of at least one resource")
        for name in self.cards:
            if not _RESOURCE.fullmatch(name) or _is_kubernetes(name):
                raise KindError(f"resource {name!r}; allowed are names such as example.com/gpu, not of kubernetes.io")


def _is_kubernetes(name: str) -> bool:
    return name.partition("/")[0].endswith("kubernetes.io") or name != allocation.short(name)


def _text(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {amount}" for name, amount in sorted(amounts.items()))


_OTHERS: Final = (allocation.REPLICAS, allocation.FUNCTIONS, *allocation.EXCLUSIVES)


def split(kind: str, amount: int, hint: Hint) -> Part:
    """Return hundredths of devices as a part: of one card or of several whole cards, unless the hint differs."""
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
    """All device types, built-in and added, and the units in which pods request them."""

    added: tuple[Kind, ...] = ()
    units: Mapping[str, int] = field(default_factory=dict)
    """Resource of another system -> bytes of its unit, where it is not the usual one (`berth_api.words`)."""
    nics: Mapping[str, int] = field(default_factory=dict)
    """Resource of another device plugin -> the hundredths of an RDMA NIC that one of it takes."""
    gpus: Mapping[str, GpuVendor] = field(default_factory=dict)
    """Resource of whole GPUs of an added vendor -> the vendor."""
    gpu_vendors: frozenset[str] = frozenset({NVIDIA})
    """Vendors whose GPUs pods get by Berth's resources, such as `kubernetes.io/gpu`; `ALL_VENDORS` for all. For added
    vendors, `GpuVendor.shared` decides."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all types."""
        return (*allocation.TYPES, *(kind.name for kind in self.added))

    def requested(self, names: Collection[str]) -> Iterator[Kind]:
        """Return the added types that have one of these resources."""
        return (kind for kind in self.added if not kind.resources.keys().isdisjoint(names))

    def has(self, resource: str) -> bool:
        """Return whether an added type has this resource, or it is of another plugin's NICs."""
        if resource in self.nics:
            return True
        # A loop is faster than any(); this runs for each resource of each pod, mostly without added types.
        for kind in self.added:  # noqa: SIM110
            if resource in kind.resources:
                return True
        return False

    def parts(self, amounts: Mapping[str, int], hints: Mapping[str, Hint]) -> Iterator[Part]:
        """Yield the parts of a request for added types.

        Raises:
            RequestError: an amount is invalid.
        """
        for kind in self.requested(amounts):
            own_amounts = {name: amount for name, amount in amounts.items() if name in kind.resources}
            yield kind.part(own_amounts, hints.get(kind.name, NO_HINT))


def read_nics(text: str) -> dict[str, int]:
    """Return the NICs that resources of other device plugins stand for: `NAME=HUNDREDTHS`, joined by commas.

    Raises:
        KindError: a name is of Kubernetes, Berth or GPUs, or an amount is not from 1 to 100.
    """
    nics = {}
    for entry in filter(None, text.split(",")):
        name, _, amount = entry.partition("=")
        if not _RESOURCE.fullmatch(name) or _is_kubernetes(name) or name.startswith((_OWN, *_OF_GPUS)):
            raise KindError(f"resource {name!r}; allowed are names of other plugins' NICs, such as nvidia.com/hostdev")
        if not amount.isdecimal() or not 1 <= int(amount) <= CARD:
            raise KindError(f"{name}={amount}; allowed are 1 to {CARD} hundredths of a NIC, 100 for a whole one")
        nics[name] = int(amount)
    return nics


def checked_nics(text: str) -> str:
    """Return the text of a setting if it is valid; raise the errors of `read_nics`."""
    read_nics(text)
    return text


def read_gpu_vendors(text: str) -> frozenset[str]:
    """Return the vendors whose GPUs pods get by Berth's resources, as in `nvidia,amd`; `*` stands for all.

    Raises:
        KindError: a name is no vendor's name, there is none, or pods get this vendor's cards only by its own resources.
    """
    vendors = frozenset(filter(None, text.split(",")))
    for vendor in vendors - {ALL_VENDORS}:
        if vendor == HUAWEI or not re.fullmatch(_VENDOR, vendor):
            raise KindError(
                f"vendor {vendor!r}; allowed are names of vendors such as amd, but not huawei, or * for all"
            )
    if not vendors:
        raise KindError("no vendor; allowed is at least one, such as nvidia, or * for all")
    return vendors


def checked_gpu_vendors(text: str) -> str:
    """Return the text of a setting if it is valid; raise the errors of `read_gpu_vendors`."""
    read_gpu_vendors(text)
    return text


_OWN: Final = "berth.dev/"
_OF_GPUS: Final = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/", "dcu.com/", "huawei.com/")

BUILT_IN: Final = Kinds()
"""Only GPUs, RDMA NICs and FPGAs."""
