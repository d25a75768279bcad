"""The version of the programs."""

from importlib import metadata
from typing import Final

DISTRIBUTION: Final = "berth-operator"
"""The package on PyPI that contains all programs."""


def version() -> str:
    """Return the version of the installed package."""
    return metadata.version(DISTRIBUTION)
