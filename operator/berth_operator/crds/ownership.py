"""Whose definition a CustomResourceDefinition is."""

from collections.abc import Mapping
from typing import Any, Final

from berth_api import names

CATEGORY: Final = "berth"
"""Every definition of Berth's lists its kind in this category (`kubectl get berth`), and no other project's does."""


def is_foreign(definition: Mapping[str, Any]) -> bool:
    """Return whether another project installed this definition.

    PodGroups are defined by scheduler-plugins, too. Berth reads and writes theirs as well as its own.
    """
    spec = definition["spec"]
    return spec["group"] != names.GROUP and CATEGORY not in spec["names"].get("categories", ())
