"""Names of MIG profiles: `1g.10gb`, `1g.10gb+me` as the driver has them, and the resources that stand for them."""

import re
from typing import Final

PREFIX: Final = "nvidia.com/mig-"
_PROFILE: Final = re.compile(
    r"(?P<part>[1-9]c\.)?(?P<slices>[1-9])g\.(?P<memory>[1-9][0-9]{0,3})gb([.+-][a-z0-9]{1,8}){0,3}"
)


def is_resource(name: str) -> bool:
    """Tell whether a resource stands for MIG instances, of whatever profile."""
    return name.startswith(PREFIX)


def is_profile(name: str) -> bool:
    """Tell whether a name has the form of a profile."""
    return _PROFILE.fullmatch(name) is not None


def is_part(profile: str) -> bool:
    """Tell whether it is of compute instances that share a GPU instance (`1c.3g.40gb`), which no plugin offers."""
    match = _PROFILE.fullmatch(profile)
    return match is not None and match["part"] is not None


def resource(profile: str) -> str:
    """Give the resource of a profile: a resource's name cannot have a `+`."""
    return PREFIX + profile.replace("+", ".")


def slices(name: str) -> int:
    """Give the slices of its card that an instance takes, by its profile or its resource; 0 where that is none."""
    match = _PROFILE.fullmatch(name.removeprefix(PREFIX))
    return int(match["slices"]) if match else 0


def gibibytes(profile: str) -> int:
    """Give the memory that a profile is named by."""
    match = _PROFILE.fullmatch(profile)
    return int(match["memory"]) if match else 0
