"""Which models a pod accepts."""

import pytest

from berth_api import names
from berth_api.request import model
from berth_api.request.model import ANY_MODEL, ModelConstraint, ModelError, of_pod
from tests.objects.builders import A100, T4


def read(exact: str | None = None, regex: str | None = None, globs: str | None = None) -> ModelConstraint:
    annotations = {names.MODEL_EXACT: exact, names.MODEL_GLOBS: globs}
    labels = {names.MODEL_REGEX: regex}
    return of_pod(
        {key: value for key, value in annotations.items() if value is not None},
        {key: value for key, value in labels.items() if value is not None},
    )


@pytest.mark.parametrize(
    ("constraint", "name", "accepted"),
    [
        pytest.param(ANY_MODEL, A100, True, id="no constraint"),
        pytest.param(ANY_MODEL, "", True, id="no constraint, no name"),
        pytest.param(read(exact=A100), A100, True, id="exact"),
        pytest.param(read(exact=f"  {A100.upper()} "), f" {A100.lower()}  ", True, id="exact, case and spaces"),
        pytest.param(read(exact="A100"), A100, False, id="exact is not a part"),
        pytest.param(read(exact=""), T4, True, id="empty exact accepts all"),
        pytest.param(read(regex="A100"), A100, True, id="regex anywhere"),
        pytest.param(read(regex="a100.sxm"), A100, True, id="regex without regard to case"),
        pytest.param(read(regex="H100"), A100, False, id="regex that does not match"),
        pytest.param(read(regex="A.00"), A100, True, id="a dot keeps its meaning"),
        pytest.param(read(globs="*A100*"), A100, True, id="glob"),
        pytest.param(read(globs="*H100*, *a100*"), A100, True, id="any glob of several"),
        pytest.param(read(globs="A100*"), A100, False, id="a glob covers the whole name"),
        pytest.param(read(globs="Tesla T?"), T4, True, id="one character"),
        pytest.param(read(globs="*A100*"), "", False, id="a card without a name"),
        pytest.param(read(globs="!*a100*"), A100, False, id="excluded"),
        pytest.param(read(globs="! *H100*"), A100, True, id="another is excluded"),
        pytest.param(read(globs="!*H100*"), "", True, id="a card without a name is not excluded"),
        pytest.param(read(globs="*A100*, !*SXM*"), A100, False, id="a glob that matches, and one that excludes"),
        pytest.param(read(globs="*A100*, !*PCIE*"), A100, True, id="a glob that matches, and another is excluded"),
        pytest.param(read(globs="*A100*", regex="SXM"), A100, True, id="both hold"),
        pytest.param(read(globs="*A100*", regex="PCIe"), A100, False, id="one does not"),
        pytest.param(read(exact=A100, globs="*H100*"), A100, False, id="exact holds, glob does not"),
    ],
)
def test_a_model_is_accepted(constraint: ModelConstraint, name: str, *, accepted: bool) -> None:
    assert constraint.accepts(name) is accepted


def test_what_is_excluded_is_in_the_text() -> None:
    assert str(read(globs="!*A100*, *H*, !*T4*")) == "*H* and not *A100* or *T4*"
    assert read(globs="!*A100*")


ALIASES = {"a100": ("nvidia a100*",), "big": ("*80GB", "nvidia h200")}


CARD_IS_KNOWN_BY_ITS_ALIASES_TOO = {
    "an alias for the whole name": (ModelConstraint(exact="A100"), "NVIDIA A100-PCIE-40GB", True),
    "an alias of others": (ModelConstraint(exact="a100"), "NVIDIA H100", False),
    "the full name all the same": (ModelConstraint(exact="nvidia h200"), "NVIDIA H200", True),
    "an alias is excluded": (ModelConstraint(excluded=("big",)), "NVIDIA H200", False),
    "a regular expression on an alias": (ModelConstraint(regex="^big$"), "NVIDIA H200", True),
    "a glob on an alias": (ModelConstraint(globs=("bi?",)), "NVIDIA A100-SXM4-80GB", True),
    "alias and full name": (ModelConstraint(exact="a100", globs=("*80gb",)), "NVIDIA A100-SXM4-80GB", True),
    "both must hold": (ModelConstraint(exact="a100", globs=("*80gb",)), "NVIDIA A100-PCIE-40GB", False),
}


@pytest.mark.parametrize(
    ("constraint", "name", "accepted"), CARD_IS_KNOWN_BY_ITS_ALIASES_TOO.values(), ids=CARD_IS_KNOWN_BY_ITS_ALIASES_TOO
)
def test_a_card_is_known_by_its_aliases_too(constraint: ModelConstraint, name: str, *, accepted: bool) -> None:
    assert constraint.accepts(name, ALIASES) is accepted


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param({"globs": ""}, "berth.dev/gpu-model", id="no glob"),
        pytest.param({"globs": " , ,"}, 'names no model; allowed is a list such as "*A100*, *H100*"', id="only commas"),
        pytest.param({"regex": "(A100"}, "genius/gpu-model", id="not a regular expression"),
        pytest.param({"regex": "(.|.|.)*_"}, "is not the value of a label; allowed are up to 63", id="never ends"),
        pytest.param({"regex": "x" * 64}, "is not the value of a label", id="long regular expression"),
        pytest.param({"exact": "x" * 1025}, "nvidia-gpu-scheduler/gpu.model: 1025 characters", id="long exact"),
        pytest.param({"globs": "x" * 1025}, "berth.dev/gpu-model: 1025 characters; allowed are 1024", id="long glob"),
    ],
)
def test_a_bad_constraint_is_named(source: dict[str, str], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(**source)
    assert words in str(caught.value)


WHOLE = f'{names.MODEL_EXACT} is the whole name; for a part of it use {names.MODEL_GLOBS}: "*a100*"'
REGEX = f'"{{}}" looks like a regular expression; {names.MODEL_GLOBS} takes globs: {{}}'
OF_PART = '"{}" must match the whole name; for a part of it use "{}"'


PART_OF_A_NAME_GETS_A_HINT = {
    "a part for the whole name": (read(exact="a100"), WHOLE),
    "a glob of a part": (read(globs="A100*"), OF_PART.format("A100*", "*A100*")),
    "the second glob": (read(globs="H100, T4"), OF_PART.format("T4", "*T4*")),
    "a model that there is": (read(exact=T4), ""),
    "a regular expression": (read(regex="A.00"), ""),
    "branches": (read(globs="(A100|H100-SXM)"), REGEX.format("(A100|H100-SXM)", '"*A100*, *H100-SXM*"')),
    "both ends": (read(globs="^NVIDIA A.+$"), REGEX.format("^NVIDIA A.+$", '"*NVIDIA A*"')),
    "one that is no simple glob": (read(globs=r"\D100"), REGEX.format(r"\D100", 'such as "*A100*, *H100*"')),
    "a pattern for the whole name": (
        read(exact="*A100*"),
        f'{names.MODEL_EXACT} is the whole name; for a pattern use {names.MODEL_GLOBS}: "*A100*"',
    ),
}


@pytest.mark.parametrize(("constraint", "hint"), PART_OF_A_NAME_GETS_A_HINT.values(), ids=PART_OF_A_NAME_GETS_A_HINT)
def test_a_part_of_a_name_gets_a_hint(constraint: ModelConstraint, hint: str) -> None:
    assert constraint.hint([A100, T4]) == hint


def test_no_constraint_is_false() -> None:
    assert not read()
    assert read(regex="x")


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        pytest.param(read(exact="A"), "A", id="exact"),
        pytest.param(read(regex="B"), "B", id="regex"),
        pytest.param(read(globs="C*, D*"), "C* or D*", id="globs"),
        pytest.param(read("A", "B", "C"), "A and B and C", id="all"),
    ],
)
def test_a_constraint_is_shown_as_it_was_written(constraint: ModelConstraint, text: str) -> None:
    assert str(constraint) == text


def test_a_constraint_of_the_greatest_length_is_read() -> None:
    assert read(exact="x" * model.MAX_LENGTH).exact == "x" * 1024
