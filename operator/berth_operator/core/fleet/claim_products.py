"""The products of each node's devices, so that members of a gang get alike devices."""

from typing import Final

import numpy as np

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.labels import ABSENT, Numbers

MAX_PRODUCTS: Final = 16
"""Groups of rows with alike devices. Further rows belong to no group."""


def numbers(fleet: Fleet) -> Numbers | None:
    """Return a number for each row, equal for rows with alike devices; None if there are fewer than two such groups.

    It is `ABSENT` for rows without devices that can be allocated, and for rows with several products of one driver.
    """
    known: dict[object, int] = {}
    found: Numbers = np.full(len(fleet.names), ABSENT, np.int32)
    for name, row in fleet.rows.items():
        products = fleet.claims.supply.on(name, fleet.labels[row]).products
        if products and len({driver for driver, _ in products}) == len(products) and len(known) < MAX_PRODUCTS:
            found[row] = known.setdefault(products, len(known) + 1)
    return found if len(known) > 1 else None
