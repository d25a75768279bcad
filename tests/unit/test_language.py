"""Berth is written in plain English: the rules of its linter, and one name for one thing."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import prose

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "text",
    [
        "The pod is created anew.",
        "The reason is told to its user.",
        "Who may list but not watch is no reason to list without end.",
        '    """Give of equal values the one that was here first."""',
        '    """Tell whether the pod fits."""',
    ],
)
def test_a_banned_turn_is_found(text: str) -> None:
    assert len([*prose.in_lines(text)]) == 1


@pytest.mark.parametrize("text", ["Who leads?", "Return whether the pod fits.", "`beside` is a name", "besides"])
def test_other_words_pass(text: str) -> None:
    assert [*prose.in_lines(text)] == []


FORTY = " ".join(["word"] * 40)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("# Title\n\nOf two nodes\nthe first.", "3: begins with 'Of'"),
        ("It ends. As many as fit\nare bound.", "1: begins with 'As many'"),
        ("- (a list.) By which node it runs.", "1: begins with 'By which'"),
        ("It keeps\nthat of the node.", "2: 'that of'"),
        ("- **Recent:** nodes\n  [of late](page.md).", "2: 'of late'"),
        ("| a | b |\n|---|---|\n| one | See to that. |", "3: 'See to that'"),
        ("| | `b` |\n|---|---|\n| one | two |", "1: empty head"),
        (f"One. `A code span` {FORTY}. Two.", "1: 41 words"),
    ],
)
def test_prose_that_is_read_twice_is_found(text: str, wrong: str) -> None:
    [finding] = prose.in_document(text)
    assert str(finding).startswith(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ echo Of late that of\n```",
        "    Of late",
        "Of course `of late` passes.",
        "It is read as it is written, in order of priority, and is by default off.",
        f"{FORTY}. {FORTY}",
        f"- {FORTY}:\n    - {FORTY}\n\n| {FORTY} | {FORTY} |\n|---|---|\n| one | two |",
        "<!-- Of late -->",
    ],
)
def test_other_prose_passes(text: str) -> None:
    assert [*prose.in_document(text)] == []


PROGRAMS = {
    "berth-operator": ("operator/berth_operator",),
    "berth-agent": ("agent/berth_agent",),
    "kubectl-berth": ("kubectl/berth_kubectl",),
    "shared": ("api/berth_api", "base/berth_base", "client/berth_client"),
}


def public_classes(folder: Path) -> Iterator[str]:
    """Yield the names of the public classes of a package, without the Protocols by which a consumer narrows another.

    Generated classes do not count: two interfaces of kubelet have services of one name.
    """
    for path in (path for path in folder.rglob("*.py") if not path.stem.endswith("_pb2_grpc")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = {getattr(getattr(base, "value", base), "id", "") for base in node.bases}
                if "Protocol" not in bases:
                    yield node.name


@pytest.mark.parametrize("folders", PROGRAMS.values(), ids=PROGRAMS)
def test_a_class_name_stands_for_one_thing_within_a_program(folders: tuple[str, ...]) -> None:
    names = Counter(name for folder in folders for name in public_classes(ROOT / folder))
    assert [name for name, number in names.items() if number > 1] == []
