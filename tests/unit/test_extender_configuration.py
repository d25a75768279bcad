"""kube-scheduler's shipped configuration passes everything that Berth allocates to the extender."""

import re

import pytest
import yaml

from berth_api import names, request
from berth_api.allocation import mig
from berth_api.request import amounts
from berth_operator.apis.extender import extender_server
from berth_operator.settings.flags import Settings
from tests.programs import kube_scheduler

CONFIGURATION = yaml.safe_load(kube_scheduler.SHIPPED.read_text())
[EXTENDER] = CONFIGURATION["extenders"]
IGNORED = {each["name"]: each.get("ignoredByScheduler", False) for each in EXTENDER["managedResources"]}
NAMEABLE = {*(names.OTHER_PREFIX + name for name in amounts._COMMON), *request.VENDORS}


def test_all_resources_are_passed_on() -> None:
    assert IGNORED.keys() >= NAMEABLE
    assert all(request.is_device(name) for name in IGNORED)
    assert all(mig.is_profile(mig.profile(name)) for name in IGNORED if mig.is_resource(name))
    assert len(IGNORED) == len(EXTENDER["managedResources"])
    assert not [name for name in IGNORED if name.startswith(names.PREFIX)]


def test_kube_scheduler_counts_what_nodes_offer() -> None:
    summed = {name for name in IGNORED if name.startswith(names.OTHER_PREFIX) or request.is_counted_on_node(name)}
    assert {name for name, ignored in IGNORED.items() if not ignored} == summed


def test_no_pod_is_bound_without_the_extender_and_no_node_is_left_out() -> None:
    assert EXTENDER["ignorable"] is False
    assert EXTENDER["nodeCacheCapable"] is True
    assert CONFIGURATION["percentageOfNodesToScore"] == 100
    assert EXTENDER["httpTimeout"] == f"{Settings.model_fields['extender_timeout'].default:g}s"


def test_the_paths_are_those_of_the_server() -> None:
    assert EXTENDER["urlPrefix"].endswith(f"/{extender_server.PATH.lstrip('/')}")
    assert {EXTENDER[f"{verb}Verb"] for verb in extender_server.VERBS} == set(extender_server.VERBS)


@pytest.mark.parametrize("field", re.findall(r"^\| `(\w+)[:`]", kube_scheduler.PAGE.read_text(), re.MULTILINE))
def test_the_documentation_explains_fields_that_are_there(field: str) -> None:
    assert f"{field}:" in kube_scheduler.SHIPPED.read_text()
