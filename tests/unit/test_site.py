"""Every page is on the site of the documents, has its place in the navigation, and links to pages of the site."""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NAVIGATION = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text())["project"]["nav"]
ELSEWHERE = re.search(r"^PAGES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
assert ELSEWHERE is not None
PAGES = {*ELSEWHERE[1].split(), *(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))}
NUMBERED = re.compile(r"docs/decisions/\d{4}-.*")
"""Decisions are listed by a page of their own."""


def named(entries: list[Any]) -> Iterator[str]:
    """Yield the pages of a part of the navigation."""
    for entry in entries:
        for target in [entry] if isinstance(entry, str) else entry.values():
            yield from [target] if isinstance(target, str) else named(target)


def on_site(target: str) -> bool:
    """Return whether `make docs` copies the file."""
    return target in PAGES or (target.startswith("docs/") and (ROOT / target).is_file())


def test_each_page_has_one_place_in_the_navigation() -> None:
    assert sorted(named(NAVIGATION)) == sorted(page for page in PAGES if not NUMBERED.fullmatch(page))


def listed(entries: list[Any], depth: int = 0) -> Iterator[str]:
    """Yield the lines of the index for a part of the navigation."""
    for entry in entries:
        [(title, target)] = entry.items()
        if isinstance(target, str):
            yield f"{'    ' * depth}* [{title}]({os.path.relpath(target, 'docs')})"
        else:
            yield f"{'    ' * depth}* {title}" if depth >= 0 else f"## {title}"
            yield from listed(target, depth + 1)


def test_the_index_has_the_pages_and_the_order_of_the_navigation() -> None:
    lines = (ROOT / "docs/README.md").read_text().splitlines()
    sections = [entry for entry in NAVIGATION if not any(isinstance(target, str) for target in entry.values())]
    assert [line for line in lines if line.lstrip().startswith(("## ", "* "))] == [*listed(sections, -1)]


def test_the_list_of_decisions_is_complete() -> None:
    """Decisions about libraries have sections of one page. All others have a page with the number of the decision."""
    folder = ROOT / "docs" / "decisions"
    rows = re.findall(r"^\* \[(\d+)\. (.*)\]\((.*)\)$", (folder / "README.md").read_text(), re.MULTILINE)
    listed = sorted(
        f"# {number}. {title} {page}" for number, title, page in rows if not page.startswith("libraries.md#")
    )
    assert listed == sorted(f"{page.read_text().splitlines()[0]} {page.name}" for page in folder.glob("0*.md"))
    of_libraries = re.findall(r"^\*Decision (\d+):", (folder / "libraries.md").read_text(), re.MULTILINE)
    assert of_libraries == [number for number, _, page in rows if page.startswith("libraries.md#")]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_links_only_to_what_the_site_has(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / page).read_text())
    files = [(ROOT / page).parent / link for link in links if not re.match(r"[a-z]+:", link)]
    targets = [str(file.resolve().relative_to(ROOT)) for file in files]
    assert [target for target in targets if not on_site(target)] == []


@pytest.mark.parametrize("page", sorted(PAGES))
def test_lists_and_tables_are_read_alike_by_the_site_and_by_repository_browsers(page: str) -> None:
    """Python-Markdown wants an empty line before a list or table, and four spaces before a nested item."""
    text = re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    item = r"(?:[*-]|\d+\.) "
    wrong = rf"^ {{1,3}}{item}.*|^(?![*-] |\d+\. | |\n|#).*\n{item}.*|^(?!\|).+\n\|.*"
    assert re.findall(wrong, text, re.MULTILINE) == []


LONGEST = 250


@pytest.mark.parametrize(
    "page", sorted(page for page in PAGES if not page.startswith(("docs/reference/", "CHANGELOG")))
)
def test_a_page_that_is_written_by_hand_stays_readable(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= LONGEST
