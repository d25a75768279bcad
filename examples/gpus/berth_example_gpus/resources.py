"""How pods request the cards. The operator imports only this module, because its image has no agent."""

from typing import Final

from berth_api.request import GpuVendor

CARDS: Final = "example.com/gpu"
RESOURCES: Final = GpuVendor(name="example", cards=(CARDS,))
