"""Suggest what a user may have meant by the name of a resource that no node has."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from berth_api import names
from berth_api.request.amounts import VENDORS
from berth_api.request.kinds import Kinds
from berth_api.request.values import CARD
from berth_api.values import listing, spelling

ALIKE: Final = 0.92
"""The least similarity of whole names. For the part after the slash, less is enough if Berth allocates such devices."""
MAX_KNOWN: Final = 512
"""Names that are compared with a name."""
_PREFIXED: Final = (
    names.GPU_MEMORY,
    names.GPU_MEMORY_RATIO,
    names.GPU_CORE,
    names.GPU_SHARED,
    names.GPU,
    names.RDMA,
    names.FPGA,
)
_BUILT_IN: Final = (
    *(prefix + name for prefix in (names.PREFIX, names.OTHER_PREFIX) for name in _PREFIXED),
    *VENDORS,
)
_OF_DEVICES: Final = frozenset((names.GROUP, *(name.partition("/")[0] for name in _BUILT_IN)))
"""Domains under which Berth's users expect devices: the resources' own, and Berth's, which has none."""

_IN_HUNDREDTHS: Final = tuple(prefix + names.GPU for prefix in (names.PREFIX, names.OTHER_PREFIX))
_TYPES: Final = frozenset({names.GPU, names.RDMA, names.FPGA})
_BORDERS: Final = re.compile(r"[./_-]")


def hint(unknown: Mapping[str, int], offered: Iterable[str], kinds: Kinds) -> str:
    """Return a sentence about the resources that no node has, with the nearest known names.

    `unknown` has the requested amounts by name. Empty if none of those listed has one, or is under a domain of devices:
    then another scheduler's users may know it. Only as many as a message lists are compared: a pod may request
    thousands of names.
    """
    own = [*(name for kind in kinds.added for name in kind.resources), *kinds.gpus]
    # The first of equally near names is meant: the prefix of Kubernetes, and no name that only some nodes have.
    known = list(dict.fromkeys((*_BUILT_IN, *own, *offered)))[:MAX_KNOWN]
    listed = sorted(unknown)
    near = {name: nearest(name, known) for name in listed[: listing.SHOWN]}
    meant = {name: _with_amount(name, unknown[name], other) for name, other in near.items() if other}
    if not meant and not any(_is_of_devices(name) for name in listed[: listing.SHOWN]):
        return ""
    unknown_names = (f"{name} (did you mean {meant[name]}?)" if name in meant else name for name in listed)
    return f"no node has {listing.first_of(unknown_names)}."


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name that is nearest to an unknown one; empty if none is near."""
    if alike := spelling.closest(name, known, ALIKE):
        return alike
    if not _is_of_devices(name):
        return ""
    # Names without a domain, such as cpu, are no devices, and those of other domains may mean anything.
    domain, _, short = name.partition("/")
    by_own = {resource.partition("/")[2]: resource for resource in reversed(list(known)) if _is_of_devices(resource)}
    return by_own.get(spelling.closest(short, by_own) if domain in _OF_DEVICES else short, "")


def in_hundredths(cards: int | None) -> str:
    """Return the resource for so many whole cards, with its unit; without the amount if it is not known."""
    amount = "" if cards is None else f": {cards * CARD}"
    return f"{names.PREFIX}{names.GPU}{amount}, in hundredths of a card"


def _with_amount(name: str, amount: int, meant: str) -> str:
    """Return what a name may have meant. Names of domains that are not of Berth's users count whole cards."""
    if meant not in _IN_HUNDREDTHS:
        return meant
    return in_hundredths(None if name.partition("/")[0] in _OF_DEVICES else amount)


def _is_of_devices(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and (domain in _OF_DEVICES or not _TYPES.isdisjoint(_BORDERS.split(name)))
