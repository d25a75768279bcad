"""The owner of a CustomResourceDefinition decides whether it is applied."""

import copy

import pytest

from berth_api import crd


@pytest.mark.parametrize("name", crd.definitions())
def test_berths_own_definitions_are_applied(name: str) -> None:
    assert not crd.is_foreign(crd.definitions()[name])


@pytest.mark.parametrize("categories", [None, [], ["all"]])
def test_the_podgroup_of_another_project_is_left_alone(categories: list[str] | None) -> None:
    definition = copy.deepcopy(crd.definitions()["podgroups.scheduling.x-k8s.io.yaml"])
    del definition["spec"]["names"]["categories"]
    if categories is not None:
        definition["spec"]["names"]["categories"] = categories
    assert crd.is_foreign(definition)


def test_a_kind_of_our_group_is_ours_whatever_its_categories() -> None:
    definition = copy.deepcopy(crd.definitions()["devices.berth.dev.yaml"])
    del definition["spec"]["names"]["categories"]
    assert not crd.is_foreign(definition)
