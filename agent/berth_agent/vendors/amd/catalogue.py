"""The faults of AMD's cards, and what ends each."""

from typing import Final

from berth_agent.health import catalogue
from berth_agent.health.catalogue import FaultCatalogue, Remedy

UNCORRECTABLE: Final = "UncorrectableErrors"
RETIREMENT_FAILED: Final = "PageRetirementFailed"
OVERHEATED: Final = "Overheated"
WEDGED: Final = "Wedged"
PARTITIONS_UNREAD: Final = "PartitionsUnread"

REMEDIES: Final = {
    # The driver's sums begin again when it is loaded again, and the table of pages changes with them.
    UNCORRECTABLE: Remedy.UNTOLD,
    RETIREMENT_FAILED: Remedy.UNTOLD,
    PARTITIONS_UNREAD: Remedy.UNTOLD,
    # A temperature crosses its limit again and again.
    OVERHEATED: Remedy.QUIET,
    # The driver has given the card up, and reports nothing when it works again.
    WEDGED: Remedy.RESET,
}
"""In addition to those that cards of all vendors have: OffTheBus, PageRetirementPending and TooManyPagesRetired."""

# The settings name no event of AMD's driver, which numbers none.
catalogue.add(FaultCatalogue(remedy=REMEDIES.get, counts=lambda _number: False))
