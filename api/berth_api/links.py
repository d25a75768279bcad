"""The types of links between cards, and what each is worth. All programs ask this table; none knows a type by name.

A direct link is a connection of the vendor's own between two cards, as NVLink is. All other types are paths over PCIe.
"""

from typing import Final

DIRECT: Final = 100
"""The lowest score of a direct link."""
SCORES: Final = {
    "System": 10,
    "SameNUMANode": 20,
    "HostBridge": 30,
    "MultiSwitch": 40,
    "SingleSwitch": 50,
    "SameBoard": 60,
    "NVLink": DIRECT,
    "XGMI": DIRECT,
    "HCCS": DIRECT,
    "XeLink": DIRECT,
    "MetaXLink": DIRECT,
    "MLULink": DIRECT,
}
"""Type of a link -> its score. Several direct links between two cards add up.

Only links of one node are compared with each other, and a node has one vendor. So all direct types have one score."""
DIRECT_LINKS: Final = {
    "NVLink": "NVLinks",
    "XGMI": "XGMI links",
    "HCCS": "HCCS links",
    "XeLink": "Xe Links",
    "MetaXLink": "MetaXLinks",
    "MLULink": "MLU-Links",
}
"""Type of a direct link -> the vendor's word for several, for messages."""
_BY_LETTERS: Final = {link_type.lower(): link_type for link_type in SCORES}
LEVELS: Final = {link_type.lower(): link_type for link_type in DIRECT_LINKS}
"""Value of the annotation `berth.dev/gpu-topology` -> the type of direct links that it requires."""
UNKNOWN: Final = SCORES["System"]
"""The score of a type that is not in the table. A path must be good to be preferred, and direct to be required, so a
type of which neither is known counts as the longest path."""


def known(text: str) -> str:
    """Return the type that a text means, whatever its case and dashes (`MLU-Link`); the text itself for none."""
    return _BY_LETTERS.get(text.replace("-", "").lower(), text)


def is_direct(link_type: str) -> bool:
    """Return whether links of this type are direct."""
    return link_type in DIRECT_LINKS


def score(link_type: str, count: int) -> int:
    """Return the score of the connection of two cards by `count` links of this type; a count of 0 is not known."""
    one = SCORES.get(link_type, UNKNOWN)
    return one * max(count, 1) if is_direct(link_type) else one


def type_of(text: str) -> str:
    """Return the type of a connection that `text` returned."""
    return text.partition(" ")[0]


def text(link_type: str, count: int) -> str:
    """Return the connection of two cards as users see it: `NVLink x12`, `XGMI x1`, `SingleSwitch`."""
    return f"{link_type} x{max(count, 1)}" if is_direct(link_type) else link_type
