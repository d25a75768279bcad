"""The role of a replica that does not lead: nothing but probes."""

from typing import Final

from berth_operator.handlers import common

REGISTRY: Final = common.registry()
