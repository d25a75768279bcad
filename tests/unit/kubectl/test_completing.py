"""The completions of a command line."""

from pathlib import Path

import pytest

from berth_kubectl import arguments
from berth_kubectl.commands import completing, completion
from berth_kubectl.commands.completing import FILES, NO_FILES, Wanted
from berth_kubectl.errors import CommandError
from berth_kubectl.reading.resources import DEVICES, JOBS, NAMESPACES, PODS


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", Wanted(words=list(arguments.VERBS))),
        ("fr", Wanted(words=list(arguments.VERBS))),
        ("--context kind f", Wanted(words=list(arguments.VERBS))),
        ("--context ", Wanted(contexts=True)),
        ("who --by ", Wanted(words=["pod", "namespace", "owner", "node", "card"])),
        ("who -n ", Wanted(resource=NAMESPACES)),
        ("who --context ", Wanted(contexts=True)),
        ("who ", Wanted()),
        ("devices ", Wanted(resource=DEVICES)),
        ("explain ", Wanted(resource=PODS)),
        ("explain job/tr", Wanted(resource=JOBS, prefix="job/")),
        ("explain job ", Wanted(resource=JOBS)),
        ("explain -n ml ", Wanted(resource=PODS)),
        ("advise ", Wanted(resource=PODS)),
        ("explain -o ", Wanted(words=["wide", "json", "yaml"])),
        ("simulate -f ", Wanted(files=True)),
        ("who --client-key ", Wanted(files=True)),
        ("who --token ", Wanted()),
        ("completion install --folder ", Wanted(files=True)),
        ("completion ", Wanted(words=["install"])),
        ("nonsense ", Wanted()),
    ],
)
def test_what_may_follow(line: str, expected: Wanted) -> None:
    assert completing.wanted(line.split(" ")) == expected


def test_the_answer_has_what_begins_with_the_typed_word() -> None:
    assert completing.answer(["d"]) == [*(verb for verb in arguments.VERBS if verb.startswith("d")), NO_FILES]
    assert completing.answer(["simulate", "--wi"]) == ["--without", NO_FILES]
    assert completing.answer(["simulate", "-f", ""]) == [FILES]
    assert completing.answer(["migrate", "--cluster", "-o", "j"]) == ["json", NO_FILES]
    assert completing.answer([]) == [*arguments.VERBS, NO_FILES]


def test_the_script_goes_next_to_the_plugin(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    assert completion.chosen(folders, tmp_path) == folders[0]
    (folders[1] / "kubectl-berth").touch()
    assert completion.chosen([Path("/usr/bin"), *folders], tmp_path) == folders[1]
    with pytest.raises(CommandError, match="--folder"):
        completion.chosen([Path("/usr/bin")], tmp_path)
