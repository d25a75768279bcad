"""This version reads objects that the previous version wrote, recorded by `make upgrade-e2e RECORD=1`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from berth_api.device import Device
from berth_api.objects.leader_lease import LeaderLease
from berth_operator.commands import main as commands

RECORDED = Path(__file__).parent / "recorded"
MODELS: dict[str, type[BaseModel]] = {"devices": Device, "leaderleases": LeaderLease}


def objects(kind: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads((RECORDED / "objects.json").read_text())[kind]
    return listed


@pytest.mark.parametrize("kind", MODELS)
def test_every_object_is_valid_and_nothing_of_its_spec_is_lost(kind: str) -> None:
    recorded = objects(kind)
    assert recorded
    for raw in recorded:
        read = MODELS[kind].model_validate(raw)
        written = json.loads(read.model_dump_json(by_alias=True, exclude_unset=True))
        assert raw["spec"].keys() <= written["spec"].keys()


def test_the_same_devices_are_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What pods hold by their annotations is charged as the version before charged it."""
    workload = tmp_path / "workload.yaml"
    container = {"name": "main", "image": "none"}
    [profile] = yaml.safe_load((RECORDED / "config.yaml").read_text())["profiles"]
    spec = {"schedulerName": profile["schedulerName"], "containers": [container]}
    workload.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}))
    files = [f"--snapshot={RECORDED / 'cluster.jsonl'}", f"--config={RECORDED / 'config.yaml'}", f"--file={workload}"]
    commands.main(["simulate", *files, "--output=json"])
    rows = json.loads(capsys.readouterr().out)["devices"]
    free = [{**row, "idle": row["idle"]["before"], "free": row["free"]["before"]} for row in rows]
    assert free == json.loads((RECORDED / "free.json").read_text())
