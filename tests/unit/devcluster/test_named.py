"""Named clusters and the state in their folders."""

import os
from pathlib import Path

import pytest

from devcluster import DevclusterError
from devcluster.control_plane import named
from devcluster.processes import state


@pytest.fixture(autouse=True)
def own_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize("name", ["", "..", "a/b", "Big", "-a", "a-"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(DevclusterError, match="is no cluster name"):
        named.folder(name)


def test_folder_of_a_dead_cluster_is_removed() -> None:
    place = named.folder("old")
    place.mkdir(parents=True)
    (place / state.LOCK).write_text(f"{os.getpid()}\n")

    assert state.supervisor(place) is None
    named.down("old")

    assert named.names() == []


def test_lock_shows_whether_its_owner_is_alive(tmp_path: Path) -> None:
    with state.held(tmp_path):
        assert state.supervisor(tmp_path) == os.getpid()
        with pytest.raises(DevclusterError, match="already runs"), state.held(tmp_path):
            pass

    assert state.supervisor(tmp_path) is None


def test_state_survives_the_file(tmp_path: Path) -> None:
    saved = state.State(server="https://127.0.0.1:1", started=1.5, processes={"etcd": 7})

    state.save(tmp_path, saved)

    assert state.read(tmp_path) == saved
    assert (tmp_path / state.STATE).stat().st_mode & 0o777 == 0o600
