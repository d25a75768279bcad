"""What a claim may have meant: attributes and capacities of other names, and amounts of memory with a unit."""

import re
from collections.abc import Iterable
from typing import Final

from berth_api import names
from berth_api.request import mistakes
from berth_api.values import spelling
from berth_operator.core.claims.objects.amounts import BINARY, UNIT
from berth_operator.core.claims.objects.requests import ResourceClaim
from berth_operator.core.claims.objects.slices import Device

_NO_KEY: Final = re.compile(r"no such key: ([^\s\"'/]{1,128})$")
UUID: Final = "uuid"
MEMORY: Final = "memory"
"""The capacity that drivers of GPUs list in bytes."""
MIN_PREFIX: Final = 3
"""Characters from which the beginning of a name stands for it: `mem` for `memory`."""


def of_error(error: str, device: Device) -> str:
    """Return what the expression that failed for a device may have meant, in brackets; empty if nothing is near."""
    if (match := _NO_KEY.search(error)) is None:
        return ""
    name = match[1]
    if name == UUID and device.id.driver == names.DRA_DRIVER and device.consumes:
        return " (an instance that is made on demand has no uuid before it is made)"
    return question(near(name, (*device.attributes, *device.capacity)))


def near(name: str, known: Iterable[str]) -> str:
    """Return the known qualified name that is nearest to a name, which may be qualified; empty if none is near."""
    by_short = {qualified.rpartition("/")[2]: qualified for qualified in known}
    short = name.rpartition("/")[2]
    meant = short if short in by_short else spelling.closest(short, by_short)
    if not meant and len(short) >= MIN_PREFIX:
        meant = next((other for other in by_short if other.lower().startswith(short.lower())), "")
    return by_short.get(meant, "")


def question(meant: str) -> str:
    """Return the question in brackets; empty if nothing is meant."""
    return f" (did you mean {meant}?)" if meant else ""


def of_memory(claims: Iterable[ResourceClaim]) -> str:
    """Return the questions about amounts of memory without a unit, which drivers round up; empty if there are none."""
    questions: dict[str, None] = {}
    for claim in claims:
        for choice in (choice for alternatives in claim.requests for choice in alternatives.choices):
            for name, amount in choice.capacity.items():
                if name.rpartition("/")[2] != MEMORY or amount.amount <= 0 or amount.format == BINARY:
                    continue
                written = f"{amount.decimal().normalize():f}"
                if meant := mistakes.with_unit(written, amount.amount // UNIT):
                    what = f"ResourceClaim {claim}: request {choice.full_name}: capacity {name}: {written}"
                    questions[f"{what} is in bytes; did you mean {meant}?"] = None
    return "; ".join(questions)
