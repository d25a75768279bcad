"""The reference pages match the code."""

from pathlib import Path

import pytest

from reference import names
from reference.__main__ import PAGES
from tests.harness import metric_names

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_up_to_date(page: str) -> None:
    assert (FOLDER / page).read_text() == PAGES[page](), "run `make generate`"


def test_no_other_page_is_in_the_folder() -> None:
    folders = {(FOLDER / page).resolve().parent for page in PAGES}
    written = {(FOLDER / page).resolve() for page in PAGES}
    assert {file for folder in folders for file in folder.iterdir()} == written


def test_a_name_without_a_row_is_found() -> None:
    assert names.without_row({"EPOCH", "READY", "NEW_ANNOTATION"}) == ["NEW_ANNOTATION"]


def test_every_series_of_the_programs_is_listed() -> None:
    text = (FOLDER / "metrics.md").read_text()
    listed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert listed == {*metric_names.of_operator(), *metric_names.of_agent()}
