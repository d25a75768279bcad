"""The CustomResourceDefinitions of this version, generated from the models."""

from typing import Any

from berth_api import crd
from berth_base.version import version

Definition = dict[str, Any]


def wanted() -> list[Definition]:
    """Return the definitions of Berth's own kinds; that of PodGroups may be another project's."""
    return [
        definition
        for definition in crd.definitions().values()
        if not crd.is_foreign(definition) and definition["spec"]["group"] == "berth.dev"
    ]


def own_version() -> str:
    """Return the version of this program."""
    return version()
