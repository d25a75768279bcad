"""What the variables of `make`'s command line may be: a wrong one is named before anything is built or started."""

import re
from pathlib import Path

import pytest

from tests.bench import figures
from tests.chaos import broken, month, run
from tests.fuzz import __main__ as fuzz
from tests.workloads import __main__ as workloads

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "names"), [("", ["a", "b", "c"]), ("b", ["b"]), ("a,c", ["a", "c"]), ("c b", ["c", "b"])]
)
def test_names_are_separated_by_commas_or_spaces(monkeypatch: pytest.MonkeyPatch, text: str, names: list[str]) -> None:
    monkeypatch.setenv("KINDS", text)
    assert figures.chosen("KINDS", ["a", "b", "c"]) == names


def test_names_with_spaces_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDS", "fence off, assume off")
    assert figures.chosen("BUILDS", broken.EDITS) == ["fence off", "assume off"]


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("KINDS", "leader_killed,leader_kiled", "KINDS: unknown leader_kiled; allowed are "),
        ("PART", "3/2", "PART: must be one part of several, such as 1/2, not '3/2'"),
        ("SEED", "one", "SEED: must be a whole number, not 'one'"),
    ],
)
def test_a_wrong_variable_of_chaos_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert str(ended.value).startswith(message)


def test_a_wrong_kind_or_build_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["month"])
    for variable, main in (("KINDS", month.main), ("BUILDS", broken.main)):
        monkeypatch.setenv(variable, "rest-less")
        with pytest.raises(SystemExit, match=f"{variable}: unknown rest-less; allowed are "):
            main()


def test_a_wrong_workload_or_target_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz", "foo"])
    for main in (fuzz.main, lambda: workloads.main(["foo"])):
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "invalid choice: 'foo' (choose from " in capsys.readouterr().err


def test_nothing_is_built_before_names_and_versions_are_checked() -> None:
    rules = dict(re.findall(r"^([a-z-]+): (.*?) ##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = ("workloads", "chaos", "month", "chaos-broken", "bench-wake", "fuzz")
    assert {rules[target] for target in named} == {"setup"}
    assert rules["release-parts"].split()[0] == "release-version"
