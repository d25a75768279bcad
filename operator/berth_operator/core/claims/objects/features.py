"""The DRA features that the API server's feature gates enable."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Feature gates of dynamic resource allocation; objects may have fields whose gate was switched off later."""

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable_devices: bool = True
    device_taints: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    fractional_ranges: bool = True


ALL: Final = Features()
