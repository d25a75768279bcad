"""A file under /dev that the driver needs comes after the first pod: no container starts before it is there."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from berth_api.names import GPU as CARD
from devcluster import Arena
from devcluster.real_node import RealNode
from tests.node.boxes import running
from tests.node.stage import GPU, Stage
from tests.node.test_own_driver import DEADLINE, classes, give_by, own_pools, slices, submit_by_claim
from tests.nvml.fixture import h100

UVM: Final = "nvidia-uvm"
RETRY_SECONDS: Final = 60.0
"""kubelet waits 10 s, then 20 s, before it makes a container again."""


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[Stage]:
    """Return a node whose kernel has nvidia-uvm, before a program has made its file."""
    proc = tmp_path / "proc"
    proc.mkdir()
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() and path.name != "devices":
            (proc / path.name).symlink_to(path)
    (proc / "devices").write_text(f"Character devices:\n195 nvidiactl\n510 {UVM}\n\nBlock devices:\n  8 sd\n")
    options = {"dra": True, "kubelet_folder": node.root, "resync_interval": 1.0, "proc_root": proc}
    with contextlib.ExitStack() as ends:
        made = ends.enter_context(Stage(node, arena, tmp_path, gpus=[h100()], **options))
        ends.enter_context(classes(arena))
        made.operator.stop()
        made.start_operator(config=own_pools(arena, tmp_path), scheduler_names=None)
        (tmp_path / "dev" / UVM).unlink()
        try:
            yield made
        finally:
            made.remove(*made.names())
            give_by(made, None)
            made.wait(lambda: not slices(made), what="the slices to go")


@pytest.mark.parametrize("way", ["claim", "name"])
def test_no_container_starts_before_the_file_is_there(stage: Stage, way: str) -> None:
    if way == "claim":
        give_by(stage, "claims")
        stage.wait(lambda: slices(stage), what=f"the {CARD} in slices")
        submit_by_claim(stage, "early", stage.arena.scheduler_name)
    else:
        stage.submit({GPU: "1"}, "early")

    def refusal() -> str:
        statuses = stage.arena.get("pods", "early")["status"].get("containerStatuses", [])
        return "".join(str(status["state"].get("waiting", {}).get("message", "")) for status in statuses)

    stage.wait(lambda: UVM in refusal(), what="the runtime to name the file")
    assert not stage.is_running("early")
    stage.make_node(UVM)
    pod = running(stage.arena, "early", deadline=max(DEADLINE, RETRY_SECONDS))
    assert UVM in stage.node.container(pod).devices
