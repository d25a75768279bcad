"""Programs are taken from where they are, if their version is the pinned one."""

from pathlib import Path

import pytest

from devcluster.building import cache, programs, versions

PINNED = versions.text(programs.PROGRAMS["etcd"].version)


@pytest.fixture(autouse=True)
def empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _etcd(folder: Path, version: str, name: str = "etcd") -> Path:
    folder.mkdir(parents=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho etcd Version: {version}\n")
    program.chmod(0o755)
    return program


def test_nothing_is_found_on_an_empty_machine() -> None:
    assert programs.find("etcd") is None


def test_assets_folder_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _etcd(tmp_path / "path", PINNED)
    pinned = _etcd(tmp_path / "assets", PINNED)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(pinned.parent))

    assert programs.find("etcd") == pinned


def test_another_version_on_path_is_passed_over(tmp_path: Path) -> None:
    _etcd(tmp_path / "path", "3.4.0")
    cached = _etcd(programs.cached("etcd").parent, PINNED)

    assert programs.find("etcd") == cached


def test_program_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    _etcd(tmp_path / "path", PINNED).write_text("no program")

    assert programs.find("etcd") is None


def test_program_that_cannot_print_its_version_is_taken_from_the_cache_alone(tmp_path: Path) -> None:
    _etcd(tmp_path / "path", versions.text(programs.PROGRAMS["karpenter"].version), "karpenter")
    assert programs.find("karpenter") is None

    cached = _etcd(programs.cached("karpenter").parent, "none", "karpenter")
    assert programs.find("karpenter") == cached


def test_cache_makes_a_file_once(tmp_path: Path) -> None:
    calls: list[Path] = []

    def make(draft: Path) -> None:
        calls.append(draft)
        draft.write_text("made")

    first = cache.once(tmp_path / "folder" / "file", make)
    second = cache.once(tmp_path / "folder" / "file", make)

    assert first == second
    assert second.read_text() == "made"
    assert len(calls) == 1
    assert calls[0] != first


def test_failed_making_leaves_nothing(tmp_path: Path) -> None:
    def fail(draft: Path) -> None:
        draft.write_text("half")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        cache.once(tmp_path / "file", fail)

    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".file")] == []
