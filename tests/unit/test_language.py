"""Berth is written in plain English: words and turns that readers have to decode stay out."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BANNED = {
    r"\banew\b": "again",
    r"\bbeside\b": "next to, in addition to",
    r"\bfor ever\b": "forever",
    r"\b(?:be|get|got) rid of\b": "remove",
    r"\b(?:tells?|told)\b": "report, show, record, name",
    r"\bnobody\b": "no pod, no process, no one: name the actor",
    r"\b(?:whoever|whom)\b": "name the actor",
    r"(?:^|[.:;] )Who (?:may|can|cannot|is|has|does|asks|wants)\b[^?]*$": "name the actor",
    r"\bsays? of\b": "reports, records",
    r"\bminds?\b": "considers, depends on",
    r"\b(?:lest|whence|thereof|hitherto|aught|naught)\b": "a modern word",
    r'"""(?:Gives?|Says?)\b': "Return",
}
"""Pattern of a banned word or turn, and what to write instead."""
ANY = re.compile("|".join(BANNED), re.IGNORECASE)

SUFFIXES = {".md", ".py", ".yaml", ".toml"}
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def sources() -> Iterator[Path]:
    """Yield the files that are held to the list."""
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith("."):
            continue
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if (path.suffix in SUFFIXES or path.name == "Makefile") and path != Path(__file__):
                yield path


def banned(text: str) -> list[str]:
    """Return each line of a text that has a banned turn, with what to write instead."""
    lines = CODE.sub("", text).splitlines()
    return [
        f"{match.group()!r}: write {better} | {line.strip()}"
        for line in lines
        if ANY.search(line)
        for pattern, better in BANNED.items()
        if (match := re.search(pattern, line, re.IGNORECASE))
    ]


def test_plain_english() -> None:
    found = {str(path.relative_to(ROOT)): banned(path.read_text()) for path in sources()}
    assert {path: lines for path, lines in found.items() if lines} == {}


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
    assert len(banned(text)) == 1


@pytest.mark.parametrize("text", ["Who leads?", "Return whether the pod fits.", "`beside` is a name", "besides"])
def test_other_words_pass(text: str) -> None:
    assert banned(text) == []


PROGRAMS = {
    "berth-operator": ("operator/berth_operator",),
    "berth-agent": ("agent/berth_agent",),
    "kubectl-berth": ("kubectl/berth_kubectl",),
    "shared": ("api/berth_api", "base/berth_base", "client/berth_client"),
}


def public_classes(folder: Path) -> Iterator[str]:
    """Yield the names of the public classes of a package, without the Protocols by which a consumer narrows another."""
    for path in folder.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = {getattr(getattr(base, "value", base), "id", "") for base in node.bases}
                if "Protocol" not in bases:
                    yield node.name


@pytest.mark.parametrize("folders", PROGRAMS.values(), ids=PROGRAMS)
def test_a_class_name_stands_for_one_thing_within_a_program(folders: tuple[str, ...]) -> None:
    names = Counter(name for folder in folders for name in public_classes(ROOT / folder))
    assert [name for name, number in names.items() if number > 1] == []
