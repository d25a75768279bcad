"""What survives the agent, and what of it is refused."""

import hashlib
import json
from pathlib import Path

import orjson
import pytest

from berth_agent.kubelet.admission.checkpoint import Checkpoint, CheckpointData
from berth_agent.kubelet.admission.mirror import Holding, PendingAllocation
from berth_agent.kubelet.admission.snapshot import ContainerKey
from berth_agent.kubelet.admission.units import Units
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


def test_what_an_earlier_agent_saved_without_the_cards_of_instances_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    save(path)
    document = json.loads(path.read_bytes())
    del document["payload"]["parents"]
    text = orjson.dumps(document["payload"], option=orjson.OPT_SORT_KEYS)
    document["checksum"] = hashlib.sha256(text).hexdigest()
    path.write_text(json.dumps(document))
    loaded = Checkpoint(path=path, boot_id="boot").load()
    assert (loaded.holdings, loaded.units.minors, loaded.units.parents) == (ALL.holdings, ALL.units.minors, {})


def test_where_nothing_was_saved_nothing_is_loaded(tmp_path: Path) -> None:
    assert Checkpoint(path=tmp_path / "checkpoint", boot_id="boot").load() == CheckpointData()


def test_it_is_written_only_where_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = save(path)
    path.unlink()
    checkpoint.save(pending=ALL.pending, holdings=ALL.holdings, units=ALL.units)
    assert not path.exists()
    checkpoint.save(pending=(), holdings=ALL.holdings, units=ALL.units)
    assert Checkpoint(path=path, boot_id="boot").load().pending == ()


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


def test_a_changed_figure_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "checkpoint"
    save(path)
    document = json.loads(path.read_text())
    document["payload"]["promises"][0]["ids"] = ["GPU-9"]
    path.write_text(json.dumps(document))
    assert Checkpoint(path=path, boot_id="boot").load() == CheckpointData()
    assert "its checksum is wrong" in capsys.readouterr().out


def test_another_boot_s_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "checkpoint", boot="other")
    assert Checkpoint(path=tmp_path / "checkpoint", boot_id="boot").load() == CheckpointData()
    assert "it is of another boot" in capsys.readouterr().out
