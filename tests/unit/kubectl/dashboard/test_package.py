"""An installation has the page: the wheel, and krew's archive, which is frozen from an installation."""

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from berth_kubectl.dashboard import files

ROOT = Path(__file__).parents[4]


def test_the_wheel_has_every_file_of_the_page() -> None:
    packed = {Path(file.path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    served = {files.FOLDER / name for name in files.read()}
    assert served
    assert sorted(served - packed) == []


def test_every_file_of_the_page_is_served() -> None:
    """A suffix without a Content-Type would be missing without a message."""
    there = {path for path in files.FOLDER.rglob("*") if path.is_file() and path.name != "README.md"}
    assert {path.relative_to(files.FOLDER).as_posix() for path in there} == set(files.read())
