"""How much of its card a MIG instance takes, by its profile only: the most among the models with this profile."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from berth_api.allocation import mig
from berth_api.request.values import CARD

PROFILES: Final = {
    (4, 24): ("1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb"),
    (7, 40): ("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    (7, 80): ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    (7, 94): ("1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"),
    (7, 96): ("1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"),
    (4, 96): (
        *("1g.24gb", "1g.24gb+gfx", "1g.24gb+me", "1g.24gb+me.all", "1g.24gb-me"),
        *("2g.48gb", "2g.48gb+gfx", "2g.48gb+me.all", "2g.48gb-me", "4g.96gb", "4g.96gb+gfx"),
    ),
    (7, 141): ("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    (7, 144): ("1g.18gb", "1g.18gb+me", "1g.36gb", "2g.36gb", "3g.72gb", "4g.72gb", "7g.144gb"),
    (7, 180): ("1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
    (7, 189): ("1g.24gb", "1g.47gb", "2g.47gb", "3g.95gb", "4g.95gb", "7g.189gb"),
}
"""(slices, GB of memory) of a card -> its profiles: A30, A100-40GB, 80 GB, H100 NVL, 96 GB, RTX PRO 6000, H200, GH200,
B200, GB200; by `deployments/systemd/config-default.yaml` of https://github.com/NVIDIA/mig-parted."""
MEMORY_SLICES: Final = 8
"""Profiles take eighths of a card's memory, by NVIDIA's table of supported MIG profiles, which their names round."""


def _parts() -> Mapping[str, int]:
    parts: dict[str, int] = {}
    for (slices, gigabytes), profiles in PROFILES.items():
        for profile in profiles:
            memory = round(MEMORY_SLICES * mig.gibibytes(profile) / gigabytes)
            part = max(_part(memory, MEMORY_SLICES), _part(mig.slices(profile), slices))
            parts[profile] = max(part, parts.get(profile, 0))
    return MappingProxyType(parts)


def _part(amount: int, total: int) -> int:
    """Return so many of a total in hundredths, rounded up."""
    return -(-CARD * amount // total)


HUNDREDTHS: Final = _parts()
"""Profile -> hundredths of a card that an instance takes, by slices or memory, whichever is more."""


def hundredths(resource: str) -> int:
    """Return an instance's part of its card, by its resource; a whole card if the profile is unknown."""
    return HUNDREDTHS.get(mig.profile(resource), CARD)
