"""The shipped admission policies as data."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
RULES = ("resourceRules", "excludeResourceRules")
LOOP = re.compile(r"([\w.?\[\]]+(?:\(\{\}\))?)\.(?:all|exists|exists_one|filter|map)\(\w+,")
OF_BERTH = {
    "berth-agent-slices",
    "berth-agents",
    "berth-certificates",
    "berth-claims",
    "berth-claims-taints",
    "berth-operator-writes",
}
"""Policies whose first condition is that an account of Berth asks."""
OF_A_TENANT = re.compile(r"annotations(\.orValue\(\{\}\))?$|variables\.(before|after|annotations)$|(pair|way)\[\d\]$")


def expressions(value: object) -> Iterator[str]:
    """Yield the expressions of a policy."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from (
                [each] if key in {"expression", "messageExpression"} and isinstance(each, str) else expressions(each)
            )
    elif isinstance(value, list):
        for each in value:
            yield from expressions(each)


POLICIES = [
    pytest.param(document["spec"], id=document["metadata"]["name"])
    for file in sorted(MANIFESTS.glob("*/**/*.yaml"))
    if "AdmissionPolicy" in (text := file.read_text())  # the others are many, and slow to parse
    for document in yaml.safe_load_all(text)
    if document
    and document.get("kind") in {"ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"}
    and document["metadata"]["name"] not in OF_BERTH
]


@pytest.mark.parametrize("spec", POLICIES)
def test_no_loop_runs_over_annotations(spec: object) -> None:
    """The time of a loop grows with the square of its turns, and any editor can write 60,000 annotations."""
    loops = [loop for expression in expressions(spec) for loop in LOOP.findall(expression)]
    assert [loop for loop in loops if OF_A_TENANT.search(loop)] == []


def rules(value: object) -> Iterator[dict[str, object]]:
    """Yield the rules by which policies and bindings select resources."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from each if key in RULES else rules(each)
    elif isinstance(value, list):
        for each in value:
            yield from rules(each)


FILES = [
    pytest.param(text, id=str(file.relative_to(ROOT)))
    for folder in ("manifests", "charts/berth/files")
    for file in sorted((ROOT / folder).glob("**/*.yaml"))
    if any(key in (text := file.read_text()) for key in RULES)
]


@pytest.mark.parametrize("text", FILES)
def test_every_rule_has_the_scope_that_the_api_server_would_add(text: str) -> None:
    """A list whose elements lack a default differs from the API server's for good in Argo CD."""
    selected = list(rules(list(yaml.safe_load_all(text))))
    assert selected
    assert [rule for rule in selected if "scope" not in rule] == []
