"""The manifests on the task pages are the files of `manifests/examples`, so that they are applied by tests."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
TASKS: Final = sorted((ROOT / "docs" / "tasks").glob("*.md"))
SHOWN: Final = re.compile(
    r"^`(?P<path>manifests/examples/[\w/-]+\.yaml)`:\n\n```yaml\n(?P<text>.*?)```$", re.MULTILINE | re.DOTALL
)


def shown(page: str) -> dict[str, str]:
    """Return the manifests of a page: path -> text."""
    return {match["path"]: match["text"] for match in SHOWN.finditer(page)}


def differing(page: str) -> list[str]:
    """Return the files that a page shows otherwise than they are."""
    return [path for path, text in shown(page).items() if (ROOT / path).read_text() != text]


@pytest.mark.parametrize("page", TASKS, ids=lambda page: str(page.stem))
def test_a_task_shows_whole_manifests_that_are_files(page: Path) -> None:
    text = page.read_text()
    assert shown(text)
    assert len(shown(text)) == text.count("```yaml\n")
    assert differing(text) == []


def test_a_manifest_that_differs_from_its_file_is_found() -> None:
    [path, *_] = shown(TASKS[0].read_text())
    assert differing(f"`{path}`:\n\n```yaml\nkind: Pod\n```\n") == [path]
