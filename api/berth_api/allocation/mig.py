"""MIG profiles as the driver names them (`1g.10gb`, `1g.10gb+me`), and their resources (`nvidia.com/mig-1g.10gb`)."""

import re
from typing import Final

PREFIX: Final = "nvidia.com/mig-"
_SHARED: Final = ".shared"
"""What ends the resource of replicas of instances."""
_PROFILE: Final = re.compile(
    r"(?P<part>[1-9]c\.)?(?P<slices>[1-9])g\.(?P<memory>[1-9][0-9]{0,3})gb([.+-][a-z0-9]{1,8}){0,3}"
)


def is_resource(name: str) -> bool:
    """Return whether a resource stands for MIG instances of any profile."""
    return name.startswith(PREFIX)


def is_shared(name: str) -> bool:
    """Return whether a resource stands for time-sliced replicas of instances by a name of their own."""
    return is_resource(name) and name.endswith(_SHARED)


def is_profile(name: str) -> bool:
    """Return whether a name has the form of a profile."""
    return _PROFILE.fullmatch(name) is not None


def is_part(profile: str) -> bool:
    """Return whether its compute instances share a GPU instance (`1c.3g.40gb`); device plugins do not offer these."""
    match = _PROFILE.fullmatch(profile)
    return match is not None and match["part"] is not None


def resource(profile: str) -> str:
    """Return the resource of a profile; a resource name cannot contain a `+`."""
    return PREFIX + profile.replace("+", ".")


def profile(name: str) -> str:
    """Return the driver's name of the profile of a resource: `1g.10gb+me` of `nvidia.com/mig-1g.10gb.me.shared`."""
    slices, unit, attributes = name.removeprefix(PREFIX).removesuffix(_SHARED).partition("gb")
    return slices + unit + attributes.replace(".", "+", 1)


def slices(name: str) -> int:
    """Return how many slices of its card an instance takes, by its profile or resource; 0 if the name is neither."""
    match = _PROFILE.fullmatch(name.removeprefix(PREFIX))
    return int(match["slices"]) if match else 0


def gibibytes(profile: str) -> int:
    """Return the memory in the name of a profile, in GiB; 0 if the name is not a profile."""
    match = _PROFILE.fullmatch(profile)
    return int(match["memory"]) if match else 0
