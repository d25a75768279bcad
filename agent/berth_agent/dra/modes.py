"""How the cards of a node are given, as its Node's label says: by name, to claims, in shares, or both ways.

Pure functions.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from berth_agent.dra import shares
from berth_agent.dra.devices import ListedDevice
from berth_api import metadata
from berth_api.names import CARDS_BY_CLAIMS, CARDS_BY_CLAIMS_AND_NAME, CARDS_BY_NAME, CARDS_BY_SHARES, CARDS_KEY


class Mode(StrEnum):
    """A value of the Node's label `berth.dev/cards`."""

    NAME = CARDS_BY_NAME
    """Slices list nothing. kubelet's device API offers each card of which no claim has any part."""
    CLAIMS = CARDS_BY_CLAIMS
    """Slices list each card of which no pod has any part by name. kubelet's device API offers the other cards."""
    SHARES = CARDS_BY_SHARES
    """As `claims`, and several claims may have shares of a whole card."""
    BOTH = CARDS_BY_CLAIMS_AND_NAME
    """Slices list each whole card, with a taint while a pod has any part of it by name. kubelet's device API offers
    each card of which no claim has any part. Berth alone gives the cards in both ways, so it never gives one twice."""


def mode_of(labels: Mapping[str, str]) -> Mode:
    """Return the mode that the labels of a Node request; an unknown value stands for `name`."""
    value = labels.get(CARDS_KEY, "")
    return Mode(value) if value in set(Mode) else Mode.NAME


def misspelt(labels: Mapping[str, str]) -> str:
    """Return the message about an unknown value; empty if the value is known, or there is none."""
    written = {CARDS_KEY: labels[CARDS_KEY]} if CARDS_KEY in labels else {}
    return "".join(message for _, message in metadata.without_effect(metadata.NODE, metadata.LABEL, written))


def shown(mode: Mode, devices: Iterable[ListedDevice], *, by_name: Collection[str]) -> list[ListedDevice]:
    """Return the devices that slices list.

    Args:
        mode: how the node's cards are given.
        devices: all devices of the node.
        by_name: ids of the cards of which pods have any part by name.
    """
    if mode is Mode.NAME:
        return []
    if mode is not Mode.BOTH:
        free = [device for device in devices if device.card not in by_name]
        return [replace(device, shared=mode is Mode.SHARES and shares.is_divisible(device)) for device in free]
    # kubelet's device API withholds whole cards only. So a card is given by claim as a whole, or not at all.
    whole = (device for device in devices if device.id == device.card)
    return [replace(device, by_name=device.card in by_name) for device in whole]
