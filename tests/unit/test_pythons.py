"""Which versions of Python are supported, and which one a commit chooses."""

from pathlib import Path

from tests.harness import pythons

ROOT = Path(__file__).parents[2]


def test_readme_names_the_versions_that_the_project_lists() -> None:
    *others, last = pythons.supported()
    assert f"Python {', '.join(others)} or {last} " in (ROOT / "README.md").read_text()


def test_each_commit_chooses_the_same_version_again_and_commits_choose_all() -> None:
    versions = ["3.11", "3.12", "3.13"]
    commits = [f"{number:x}" for number in range(0xB07D598A, 0xB07D598A + 9)]
    chosen = [pythons.drawn(versions, commit) for commit in commits]
    assert chosen == [pythons.drawn(versions, commit) for commit in commits]
    assert {version: chosen.count(version) for version in versions} == dict.fromkeys(versions, 3)


def test_a_machine_with_one_version_uses_it() -> None:
    assert pythons.drawn(["3.11"], "b07d598a") == "3.11"
