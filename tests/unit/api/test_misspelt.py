"""Annotations and labels that resemble words which Berth reads."""

import pytest

from berth_api.words import misspelt
from berth_operator.state.objects import pods
from tests.objects.builders import GPU, Raw, pod

KOORDINATOR, GANG, VOLCANO = "scheduling.koordinator.sh/", "gang.scheduling.koordinator.sh/", "volcano.sh/"


@pytest.mark.parametrize(
    ("fields", "question"),
    [
        ({"annotations": {f"{GANG}min-availble": ""}}, f"annotation {GANG}min-available"),
        ({"annotations": {"use-gputype": "A100"}}, "annotation nvidia.com/use-gputype"),
        ({"annotations": {"nvidia.io/use-gputype": "A100"}}, "annotation nvidia.com/use-gputype"),
        ({"labels": {"nvidia.com/use-gputype": "A100"}}, "annotation nvidia.com/use-gputype"),
    ],
)
def test_a_word_that_is_misspelt_or_in_the_wrong_place_is_a_question(fields: Raw, question: str) -> None:
    pending = pods.pending(pod("a", {GPU: "50"}, **fields))
    assert pending.request.questions.endswith(f": did you mean the {question}?")
    assert pending.error == ""


@pytest.mark.parametrize(
    "name",
    [
        *(
            f"{KOORDINATOR}{name}"
            for name in (
                "gpu-partitions",
                "gpu-partition-spec",
                "bind-timestamp",
                "gpu-minors",
                "reservation-allocated",
            )
        ),
        "genius/other",
        "name",
        "group-name",
        "example.com/gpu-fraction",
        "volcano.sh/queue-name",
        "hami.io/vgpu-devices-allocated",
        "nvidia.com/gpu.product",
        "app.kubernetes.io/name",
    ],
)
def test_other_names_are_no_question(name: str) -> None:
    assert list(misspelt.questions({name: ""}, {})) == []


def test_a_label_is_no_question_if_the_annotation_of_its_name_is_there() -> None:
    group = {"godel.bytedance.com/pod-group-name": "g"}
    assert list(misspelt.questions(group, group)) == []
    assert list(misspelt.questions({}, group)) != []
