"""The table of labels and annotations: complete, in agreement with the code, and with an answer to each mistake."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml

from berth_agent.dra.modes import Mode
from berth_api import metadata, names
from berth_api.admission.routing import Route
from berth_api.metadata import ANNOTATION, DEVICE, LABEL, NAMESPACE, NODE, POD, Place
from berth_api.request import isolation

ROOT = Path(__file__).parents[3]
SOURCES = ("api", "base", "client", "operator", "agent", "kubectl", "manifests", "charts")
KEY = re.compile(r"(?<![-\w./@])(?:\.devices\.|gang\.devices\.|model\.|gpu\.)?berth\.dev/[a-zA-Z][-\w.]*")
NO_KEYS = {
    **dict.fromkeys((names.MPS_RESOURCE, names.HAMI_CORE_RESOURCE, names.RDMA_RESOURCE), "a resource"),
    "berth.dev/v1alpha1": "the API version of Berth's kinds",
    "berth.dev/agent-not-ready": "a taint",
    "gpu.berth.dev/linkGroup": "an attribute of devices in ResourceSlices",
    "berth.dev/operator": "the name of a controller, in statuses",
    "berth.dev/fits-devices": "the name of a controller, in AdmissionChecks",
    "berth.dev/configuration": "an annotation of the chart's agents, so that a change restarts them; nothing reads it",
    **dict.fromkeys(("berth.dev/berth-operator", "berth.dev/berth-agent"), "an image"),
}
"""Names of the same form that are no labels or annotations -> what they are."""


def written() -> Iterator[str]:
    """Yield each name of this form in the sources."""
    for folder in SOURCES:
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".yaml", ".yml", ".tpl", ".txt", ".json", ".js", ".html"}:
                yield from (name.rstrip(".-") for name in KEY.findall(file.read_text()))


def test_every_key_in_the_sources_is_in_the_table() -> None:
    found = {re.sub(r"(?<=-limit)-\d+$", "-<i>", name) for name in written() if not name.startswith(names.MODEL_PREFIX)}
    listed = {key.name.removeprefix("<container>") for key in metadata.TABLE}
    assert found - listed == NO_KEYS.keys()


def test_every_constant_is_in_the_table() -> None:
    constants = {value for value in vars(names).values() if isinstance(value, str) and value.startswith("berth.dev/")}
    api_version = {names.API_VERSION}
    assert constants - {key.name for key in metadata.TABLE} - NO_KEYS.keys() - api_version == set()


def test_no_key_is_listed_twice() -> None:
    rows = [(key.place, key.name, kind) for key in metadata.TABLE for kind in key.kinds]
    assert len(rows) == len({*rows})
    assert all(bool(key.values) != bool(key.form) for key in metadata.TABLE)


def test_the_table_has_the_values_that_the_code_reads() -> None:
    of_namespaces, of_nodes = metadata.of(NAMESPACE, LABEL), metadata.of(NODE, LABEL)
    assert of_namespaces[names.ROUTING].values == get_args(Route)
    assert of_nodes[names.CARDS_KEY].values == tuple(Mode)
    modes = (isolation.MPS, isolation.HAMI_CORE, isolation.REQUIRED, isolation.NONE)
    assert of_namespaces[names.ISOLATION_KEY].values == modes
    assert of_nodes[names.ISOLATION_KEY].values == (isolation.MPS,)


def test_the_policy_about_pods_knows_their_keys_and_those_of_other_objects() -> None:
    own = metadata.of(POD, ANNOTATION).keys() | metadata.of(POD, LABEL).keys()
    rows = [
        f'["{key.name}", "{"an" if key.place == ANNOTATION else "a"} {key.place} of {key.kinds[0]}s"]'
        for key in metadata.TABLE
        if {NODE, NAMESPACE} & {*key.kinds} and not key.by_berth and key.name not in own
    ]
    [policy, _] = yaml.safe_load_all((ROOT / "manifests/base/warnings.yaml").read_text())
    [misplaced, of_pods] = [
        variable["expression"]
        for name in ("misplaced", "ofPods")
        for variable in policy["spec"]["variables"]
        if variable["name"] == name
    ]
    [condition] = [each["expression"] for each in policy["spec"]["matchConditions"] if each["name"].startswith("of-")]
    assert sorted(re.findall(r'\["berth.dev/[^]]*\]', misplaced)) == sorted(rows)
    assert json.loads(of_pods) == [name for name, key in metadata.of(POD, ANNOTATION).items() if not key.by_berth]
    for known in (*(row.split(",")[0].strip("[") for row in rows), *map(json.dumps, json.loads(of_pods))):
        assert known in condition


@pytest.mark.parametrize(
    ("kind", "place", "text", "message"),
    [
        (NODE, LABEL, "cards=claim", "allowed are name, claims, shares, both; did you mean claims?"),
        (NODE, LABEL, "card=claims", "did you mean cards?"),
        (NODE, LABEL, "isolation=MPS", "allowed is mps; did you mean mps?"),
        (NODE, LABEL, "partitions=yes", "allowed is all"),
        (NODE, ANNOTATION, "cards=claims", "did you mean the label of this name?"),
        (NODE, LABEL, "routing=devices", "it is a label of Namespaces"),
        (NODE, LABEL, "color=red", "not known; allowed after berth.dev/ are cards, partitions, isolation"),
        (NAMESPACE, LABEL, "routing=device", "allowed are own, words, devices, disabled; did you mean devices?"),
        (NAMESPACE, LABEL, "routing=Devices", "allowed are own, words, devices, disabled; did you mean devices?"),
        (NAMESPACE, LABEL, "routing=true", "allowed are own, words, devices, disabled"),
        (NAMESPACE, ANNOTATION, "routing=devices", "did you mean the label of this name?"),
        (NAMESPACE, LABEL, "unlimited-shares=denied", "allowed are allow, warn, deny; did you mean deny?"),
        (
            NAMESPACE,
            LABEL,
            "isolation=requird",
            "allowed are mps, hami-core, required, none; did you mean required?",
        ),
        (NAMESPACE, ANNOTATION, "controller-gangs=no", "allowed are true, false"),
        (NAMESPACE, LABEL, "movable=true", "did you mean the annotation of this name?"),
        (POD, LABEL, "gpu-model=A100", "did you mean the annotation of this name?"),
        (POD, ANNOTATION, "routing=devices", "it is a label of Namespaces"),
        (DEVICE, ANNOTATION, "cordoned-device=0", "did you mean cordoned-devices?"),
        (DEVICE, LABEL, "isolation=mps", "it is a label of Nodes, a label of Namespaces, an annotation of Pods"),
    ],
)
def test_what_has_no_effect_is_answered(kind: str, place: Place, text: str, message: str) -> None:
    name, value = f"berth.dev/{text}".split("=")
    assert list(metadata.without_effect(kind, place, {name: value})) == [
        (name, f"{place} berth.dev/{text} has no effect: {message}")
    ]


def test_a_long_value_is_cut() -> None:
    [(_, message)] = metadata.without_effect(POD, ANNOTATION, {"berth.dev/routing": "x" * 1000})
    assert message == f"annotation berth.dev/routing={'x' * 63} has no effect: it is a label of Namespaces"


def test_what_has_an_effect_is_not_answered() -> None:
    for place in metadata.PLACES:
        for kind in {kind for key in metadata.TABLE for kind in key.kinds}:
            for name, key in metadata.of(kind, place).items():
                for value in key.values or ("1",):
                    assert list(metadata.without_effect(kind, place, {name: value, "team/berth.dev": "x"})) == []
