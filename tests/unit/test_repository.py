"""Checks of the repository itself."""

import re
import subprocess
import sys
from pathlib import Path

from devcluster.building import images

ROOT = Path(__file__).parents[2]
TEXT = {".md", ".py", ".sh", ".tpl", ".txt", ".yaml"}


def test_operator_folder_is_no_package() -> None:
    """With an __init__.py it would shadow the standard library's `operator` for everything run from the root."""
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_standard_library_imports_from_the_root() -> None:
    subprocess.run([sys.executable, "-c", "import collections"], cwd=ROOT, check=True)


def test_every_locked_package_has_hashes_and_no_address() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    packages = re.findall(r"^[a-z0-9][^\s;]*==.*(?:\n .*)*", lock, re.MULTILINE)
    assert packages
    assert [each.splitlines()[0] for each in packages if "--hash=sha256:" not in each] == []
    assert re.findall(r"^\s*-?-?(?:index-url|extra-index-url|find-links|-i|-f)\b.*|://.*", lock, re.MULTILINE) == []


def test_make_help_names_every_verb() -> None:
    makefile = (ROOT / "Makefile").read_text()
    documented = set(re.findall(r"^([a-z0-9-]+):.*?## ", makefile, re.MULTILINE))
    phony = set(re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE))
    assert phony == documented


def test_every_test_that_a_page_names_is_there() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    named = re.findall(r"`(?:tests/)?(\S+\.py)::(\w+)`", text)
    assert named
    sources = {path: (ROOT / "tests" / path).read_text() for path, _ in named}
    assert [each for each in named if f"def {each[1]}(" not in sources[each[0]]] == []


def test_no_file_names_a_registry_and_each_image_has_the_name_that_archives_have() -> None:
    """A name without a host would be looked for in a registry that the runtime chooses."""
    folders = (
        "agent",
        "api",
        "base",
        "charts",
        "client",
        "demo",
        "devcluster",
        "docs",
        "images",
        "manifests",
        "operator",
    )
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in TEXT]
    texts = {file: file.read_text() for file in [*files, *ROOT.glob("*.md"), *(ROOT / "images").glob("*.Dockerfile")]}
    hosts = re.compile(r"\b(?:docker|gcr|ghcr|nvcr|quay)\.io\b|\bregistry\.k8s\b")
    assert [str(file) for file, text in texts.items() if hosts.search(text)] == []

    ours = re.compile(r"image: (\S*berth-(?:operator|agent)\S*)$", re.MULTILINE)
    manifests = {ROOT / "manifests", ROOT / "demo"}
    named = {
        name for file, text in texts.items() if manifests.intersection(file.parents) for name in ours.findall(text)
    }
    assert named == {images.name(image) for image in images.IMAGES}


def test_the_readme_begins_with_the_two_commands_that_show_and_check_everything() -> None:
    commands = re.findall(r"^\$ (.+?)(?: +#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]
