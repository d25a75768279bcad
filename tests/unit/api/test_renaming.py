"""Resources that a device plugin would allocate. tests/integration/policies compares this with the policy."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from berth_api import names, words
from berth_api.admission import injection, renaming
from berth_operator.apis.webhook.mutations import patch
from tests.objects.builders import Raw, container

ROWS = [pytest.param(row, id=row.word.name) for row in words.TABLE.by_plugin]
ORIGINAL = names.ORIGINAL_RESOURCES


def pod(*containers: Raw, annotations: dict[str, str] | None = None) -> Raw:
    return {"metadata": {"annotations": annotations or {}}, "spec": {"containers": list(containers)}}


def telling(row: words.Row) -> str:
    """Return a word next to which the row's is renamed."""
    return next(word.name for word in row.system.words if word.name in words.TABLE.telling)


def requests(made: Mapping[str, Any]) -> list[Raw]:
    return [each["resources"]["requests"] for each in made["spec"]["containers"]]


@pytest.mark.parametrize("row", ROWS)
def test_it_is_renamed_next_to_a_word_of_its_system_in_any_container(row: words.Row) -> None:
    word = row.word
    made = renaming.renamed(pod(container("a", {word.name: "2"}), container("b", {telling(row): "1"})))
    assert requests(made) == [{word.renamed: "2"}, {telling(row): "1"}]
    assert json.loads(made["metadata"]["annotations"][ORIGINAL]) == {"a": {word.name: "2"}}
    assert {each["path"] for each in patch(pod(*made["spec"]["containers"]), made)} == {"/metadata/annotations"}
    assert renaming.renamed(made) == made


@pytest.mark.parametrize("row", ROWS)
def test_alone_it_is_the_plugins(row: words.Row) -> None:
    alone = pod(container("a", {row.word.name: "2"}))
    assert renaming.renamed(alone) is alone


@pytest.mark.parametrize("row", ROWS)
def test_both_names_stay_for_the_answer_unless_a_webhook_added_one_later(row: words.Row) -> None:
    both = container("a", {row.word.name: "1", row.word.renamed: "2", telling(row): "1"})
    assert renaming.renamed(pod(both)) == pod(both)
    later = renaming.renamed(pod(both, annotations={ORIGINAL: "{}"}))
    assert requests(later) == [{row.word.renamed: "2", telling(row): "1"}]
    assert later["metadata"]["annotations"] == {ORIGINAL: "{}"}


def test_containers_that_request_by_words_see_what_they_get() -> None:
    for row in words.TABLE.rows():
        if row.word.role != words.Role.FRACTION:
            continue
        made = injection.injected(pod(container("a"), container("b"), annotations={row.word.name: "0.5"}))
        first, second = (each["env"][0] for each in made["spec"]["containers"])
        assert "valueFrom" in first
        assert second["value"] == injection.NO_DEVICES
