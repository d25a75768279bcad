"""The page of reasons has an example of each reason in the code, and no other."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from berth_operator.core import filters

ROOT: Final = Path(__file__).parents[2]
CORE: Final = ROOT / "operator/berth_operator/core"
PAGE: Final = (ROOT / "docs/reasons.md").read_text()
SOURCES: Final = ("filters", "allocators", "plugins", "decision", "queue")
VARYING: Final = "\0"
"""Stands for what an f-string puts in."""
NO_REASON: Final = {
    # Frames of a message, and parts of other texts.
    *("\0 failed in \0: \0", "0/\0 nodes are available: \0.", "invalid request: \0"),
    "no nodes available to schedule pods",
    "\0 node(s) that may take the pod are starting.",
    "no node fits.",
    # Answers of the extender, which kube-scheduler shows.
    *("node(s) unknown to Berth", "node(s) fit, but Berth chose another node"),
}
"""Texts of whole sentences that are no row of the page, for the reason above them."""
BEGINNINGS: Final = re.compile(
    r"node\(s\) |\0 node\(s\) |Insufficient |Too many |persistentvolumeclaim |waiting for |pod (?:uses|has) |"
    r"namespace \0 |pod \"|could not find |resourceclaim |ResourceClaim |resource claim |request \0: |cannot allocate |"
    r"all pods in |cannot determine |"
    r"NotInjected|not eligible |found a potential |Preemption |No preemption |The search for preemption |"
    r"\0(?: does not exist| CSI driver |: | \((?:missing|\0 silent))"
)
"""How texts begin that are reasons."""


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module, without docstrings; what is put in is `VARYING`."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VARYING for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | parts:
            yield node.value


@cache
def reasons() -> frozenset[str]:
    """Return the reasons in the code."""
    trees = [ast.parse(file.read_text()) for folder in SOURCES for file in sorted((CORE / folder).glob("*.py"))]
    found = {text for tree in trees for text in texts(tree) if BEGINNINGS.match(text) and text.strip(VARYING + " :.")}
    return frozenset(text for text in found if " " in text.strip(VARYING) or text.startswith("Ins")) - NO_REASON


def examples() -> list[str]:
    """Return the messages in the first columns of the page's tables."""
    cells = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| `")]
    return [example for cell in cells for example in re.findall(r"`([^`]+)`", cell)]


def matches(reason: str, example: str) -> bool:
    pattern = ".*".join(map(re.escape, reason.split(VARYING)))
    return re.fullmatch(pattern, example) is not None


def closest(example: str, among: frozenset[str]) -> str | None:
    """Return the reason that an example shows: of those that match, the one with the most words of its own."""
    return max((reason for reason in among if matches(reason, example)), key=len, default=None)


def without_example(reasons: frozenset[str]) -> list[str]:
    return sorted(reasons - {closest(example, reasons) for example in examples()})


def test_each_reason_has_an_example() -> None:
    assert without_example(reasons()) == []


def test_each_example_is_of_the_code() -> None:
    messages = PAGE.partition("## Reasons of the condition")[0]
    wrong = [
        example
        for example in examples()
        if f"| `{example}`" in messages and not any(matches(reason, example) for reason in reasons() | NO_REASON)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "code", ['"node(s) have too few moons"', 'f"node(s) have no {name} of {owner}"', '"pod has no name"']
)
def test_a_new_reason_is_found(code: str) -> None:
    [new] = filter(BEGINNINGS.match, texts(ast.parse(f"reason = {code}")))
    assert without_example(reasons() | {new}) == [new]


def test_each_reason_of_the_condition_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Reasons of the condition")[2], re.MULTILINE))
    assert {each.TRAITS.refusal for each in filters.ORDER} - {""} <= rows
