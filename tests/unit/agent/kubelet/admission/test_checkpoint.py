"""What survives the agent, and which parts of it are refused."""

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest

from berth_agent.kubelet.admission.checkpoint import Checkpoint, CheckpointData
from berth_agent.kubelet.admission.mirror import Holding, PendingAllocation
from berth_agent.kubelet.admission.snapshot import ContainerKey
from berth_agent.kubelet.admission.units import Units
from tests.unit.agent.dra.test_preparation import no_room
from tests.unit.agent.kubelet.admission.kubelets import GPU, units

PROMISE = PendingAllocation(
    key=ContainerKey(uid="u", container="c"),
    resource=GPU,
    ids=frozenset({"GPU-1"}),
    at=0.0,
    never_reported=True,
)
HOLDING = Holding(uid="u", namespace="ns", pod="p", container="c", ids=("GPU-2", "GPU-3"))
INSTANCE = Units(minors={"MIG-a": 0}, parents={"MIG-a": "GPU-0"})
ALL = CheckpointData(pending=(PROMISE,), holdings=(HOLDING,), units=units(4).joined(INSTANCE))


def save(path: Path, *, boot: str = "boot") -> Checkpoint:
    checkpoint = Checkpoint(path=path, boot_id=boot)
    checkpoint.save(pending=ALL.pending, holdings=ALL.holdings, units=ALL.units)
    return checkpoint


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "checkpoint.json"
    save(path)
    assert Checkpoint(path=path, boot_id="boot").load() == ALL
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint.json"]


def test_where_nothing_was_saved_nothing_is_loaded(tmp_path: Path) -> None:
    assert Checkpoint(path=tmp_path / "checkpoint", boot_id="boot").load() == CheckpointData()


def test_it_is_written_only_where_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = save(path)
    before = path.stat().st_ino
    checkpoint.save(pending=ALL.pending, holdings=ALL.holdings, units=ALL.units)
    assert path.stat().st_ino == before
    checkpoint.save(pending=(), holdings=ALL.holdings, units=ALL.units)
    assert Checkpoint(path=path, boot_id="boot").load().pending == ()


@pytest.mark.parametrize("content", [None, b"", b"{"])
def test_a_file_that_another_program_removed_or_damaged_is_written_again(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "state" / "checkpoint"
    checkpoint = save(path)
    shutil.rmtree(path.parent)
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    checkpoint.save(pending=ALL.pending, holdings=ALL.holdings, units=ALL.units)
    assert Checkpoint(path=path, boot_id="boot").load() == ALL


def test_a_full_disk_is_an_error_until_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint(path=path, boot_id="boot")
    with no_room(), pytest.raises(OSError, match="too large"):
        checkpoint.save(pending=ALL.pending, holdings=ALL.holdings, units=ALL.units)
    checkpoint.save(pending=ALL.pending, holdings=ALL.holdings, units=ALL.units)
    assert Checkpoint(path=path, boot_id="boot").load() == ALL


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not a checkpoint"),
        (b"{", "not a checkpoint"),
        (b"[]", "not a checkpoint"),
        (b'{"version": 1}', "not a checkpoint"),
        (b'{"version": 2, "checksum": "", "payload": {}}', "version 2; this agent knows 1"),
        (b'{"version": 1, "checksum": "", "payload": {}}', "its checksum is wrong"),
    ],
)
def test_a_damaged_file_is_rejected_with_a_log_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes, reason: str
) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(text)
    assert Checkpoint(path=path, boot_id="boot").load() == CheckpointData()
    assert reason in capsys.readouterr().out


def test_another_boot_s_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "checkpoint", boot="other")
    assert Checkpoint(path=tmp_path / "checkpoint", boot_id="boot").load() == CheckpointData()
    assert "it is of another boot" in capsys.readouterr().out


def resealed(document: dict[str, Any]) -> bytes:
    """Return a checkpoint with the right checksum."""
    text = orjson.dumps(document["payload"], option=orjson.OPT_SORT_KEYS)
    return orjson.dumps({**document, "checksum": hashlib.sha256(text).hexdigest()})


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        pytest.param("bootID", None, "bootID: Input should be a valid string", id="boot"),
        pytest.param("promises", {}, "promises: Input should be a valid list", id="promises"),
        pytest.param("promises", [[]], "promises.0: Input should be", id="promise"),
        pytest.param("promises", [{"uid": "u"}], "promises.0.container: Field required", id="part of a promise"),
        pytest.param(
            "holdings",
            [{**dict.fromkeys(("uid", "namespace", "pod", "container"), "x"), "ids": "GPU-1"}],
            "ids",
            id="ids",
        ),
        pytest.param("holdings", None, "holdings: Input should be a valid list", id="holdings"),
        pytest.param("minors", {"GPU-1": "0"}, "minors.GPU-1: Input should be a valid integer", id="minor"),
        pytest.param("minors", [], "minors: Input should be a valid dictionary", id="minors"),
        pytest.param("cards", [1], "cards.0: Input should be a valid string", id="cards"),
        pytest.param("parents", {"MIG-1": 1}, "parents.MIG-1: Input should be a valid string", id="parents"),
        pytest.param("more", 1, "more: Extra inputs are not permitted", id="more"),
    ],
)
def test_a_file_of_other_types_is_set_aside_like_a_damaged_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, value: object, reason: str
) -> None:
    path = tmp_path / "checkpoint.json"
    save(path)
    document = json.loads(path.read_bytes())
    document["payload"][part] = value
    path.write_bytes(text := resealed(document))
    assert Checkpoint(path=path, boot_id="boot").load() == CheckpointData()
    assert reason in (line := capsys.readouterr().out)
    assert "checkpoint rejected, starting empty" in line
    assert (tmp_path / "checkpoint.rejected").read_bytes() == text
    assert not path.exists()


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "own" / "checkpoint.json"
    path.parent.mkdir(mode=0o755)
    before = os.umask(0)
    save(path)
    os.umask(before)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, path.parent)] == [0o600, 0o700]


def test_a_folder_that_others_use_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "shared" / "checkpoint.json"
    path.parent.mkdir(mode=0o755)
    (path.parent / "of another").touch()
    save(path)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, path.parent)] == [0o600, 0o755]


def test_no_link_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "secret")
    path = tmp_path / "own" / "checkpoint.json"
    path.parent.mkdir()
    path.symlink_to(tmp_path / "secret")
    assert Checkpoint(path=path, boot_id="boot").load() == CheckpointData()
    assert "Too many levels of symbolic links" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["checkpoint.json", "checkpoint.new"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "victim").write_text("precious")
    path = tmp_path / "own" / "checkpoint.json"
    path.parent.mkdir()
    (path.parent / name).symlink_to(tmp_path / "victim")
    save(path)
    assert (tmp_path / "victim").read_text() == "precious"
    assert not path.is_symlink()
    assert Checkpoint(path=path, boot_id="boot").load() == ALL


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "own").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        save(tmp_path / "own" / "checkpoint.json")
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_pipe_does_not_hold_the_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "checkpoint")
    assert Checkpoint(path=tmp_path / "checkpoint", boot_id="boot").load() == CheckpointData()
    assert "is no regular file" in capsys.readouterr().out
