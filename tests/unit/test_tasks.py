"""The examples in task pages and in the page of recommended values are files, so that tests apply them."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
TASKS: Final = [*sorted((ROOT / "docs" / "tasks").glob("*.md")), ROOT / "docs" / "recommended-values.md"]
SHOWN: Final = re.compile(
    r"^`(?P<path>(?:manifests/examples|examples/values)/[\w/-]+\.yaml)`:\n\n```yaml\n(?P<text>.*?)```$",
    re.MULTILINE | re.DOTALL,
)


def shown(page: str) -> dict[str, str]:
    """Return the files that a page shows: path -> text."""
    return {match["path"]: match["text"] for match in SHOWN.finditer(page)}


def differing(page: str) -> list[str]:
    """Return the files that a page shows otherwise than they are."""
    return [path for path, text in shown(page).items() if (ROOT / path).read_text() != text]


@pytest.mark.parametrize("page", TASKS, ids=lambda page: str(page.stem))
def test_a_page_shows_whole_files(page: Path) -> None:
    text = page.read_text()
    assert shown(text)
    assert len(shown(text)) == text.count("```yaml\n")
    assert differing(text) == []


def test_a_text_that_differs_from_its_file_is_found() -> None:
    [path, *_] = shown(TASKS[0].read_text())
    assert differing(f"`{path}`:\n\n```yaml\nkind: Pod\n```\n") == [path]
