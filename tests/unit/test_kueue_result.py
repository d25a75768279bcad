"""The document names the versions of Kueue and its neighbours with which `make kueue-e2e` last passed."""

import re
from pathlib import Path

import pytest

from devcluster.building import programs, versions

TESTING = Path(__file__).parents[2] / "docs/testing.md"
NAMES = {"kueue": "Kueue", "jobset": "JobSet", "lws": "LeaderWorkerSet", "trainer": "Kubeflow's trainer"}


def test_every_program_has_a_name() -> None:
    assert set(NAMES) == set(programs.QUOTAS)


@pytest.mark.parametrize("program", programs.QUOTAS)
def test_the_version_is_the_one_that_kueue_requires(program: str) -> None:
    required = (programs.PROGRAMS["kueue"].folder / "go.mod").read_text()
    assert programs.PROGRAMS[program].version == versions.required(required, programs.PROGRAMS[program].pin)


@pytest.mark.parametrize("program", programs.QUOTAS)
def test_the_result_is_of_the_pinned_version(program: str) -> None:
    """If this fails, run `make kueue-e2e` with the new version, and write down the result."""
    row = re.search(rf"^\| {NAMES[program]} (\S+) \|", TESTING.read_text(), re.MULTILINE)
    assert row is not None
    assert row[1] == versions.text(programs.PROGRAMS[program].version)
