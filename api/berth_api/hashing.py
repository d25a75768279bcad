"""Hashes of values that are looked up far more often than they are made."""

from dataclasses import fields
from typing import Any


def of_fields(value: Any) -> int:
    """Give the hash of all fields of a dataclass that are compared: to be kept, since computing it takes a while."""
    return hash(tuple(getattr(value, each.name) for each in fields(value) if each.compare))
