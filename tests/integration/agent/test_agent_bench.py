"""The agent's benchmark runs to its end with small sizes, so that it keeps working. Its figures mean nothing here."""

import contextlib
import json

import pytest

from devcluster import Arena
from tests.bench import agent


def test_the_benchmark_of_the_agent_ends_with_its_figures(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARM", "0")
    monkeypatch.setenv("SECONDS", "1")
    agent.main(lambda: contextlib.nullcontext(arena))
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result.keys() == {"bench", "rss_mb", "pss_mb", "cpu_percent", "seconds", "scraped_seconds"}
    assert result["rss_mb"] >= result["pss_mb"] > 0
    assert result["cpu_percent"] >= 0
