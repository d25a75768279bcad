"""Recorded sequences of events are the same on each run, and reach what they are meant to compare."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[3]
SEEDS: Final = 2


def run(command: str, file: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sequences", command, str(file), "--workers", "1", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr + done.stdout


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sequences") / "record"
    code, text = run("record", file, "--seeds", str(SEEDS))
    assert code == 0, text
    return file


def read(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_record_is_the_same_on_each_run(record: Path) -> None:
    code, text = run("compare", record)
    assert code == 0, text
    assert json.loads(text.splitlines()[-1]) == {"sequences": SEEDS, "different": 0}


def test_a_difference_is_shown(record: Path, tmp_path: Path) -> None:
    [seed, lines], *others = read(record)
    changed = tmp_path / "record"
    altered = [[seed, [line.replace('"bind"', '"bound"') for line in lines]], *others]
    changed.write_text("".join(f"{json.dumps(each)}\n" for each in altered))
    code, text = run("compare", changed)
    assert code == 1
    assert '-["bound"' in text
    assert json.loads(text.splitlines()[-1]) == {"sequences": SEEDS, "different": 1}


def test_sequences_reach_what_they_compare(record: Path) -> None:
    kinds = {json.loads(line)[0] for _, lines in read(record) for line in lines}
    assert kinds >= {"bind", "condition", "nomination", "delete", "claim", "filter", "extender", "lease"}
