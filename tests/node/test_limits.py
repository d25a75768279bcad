"""Two shares of a card have their own limits, by MPS and by HAMi-core. `make limits-e2e` runs longer tests."""

from pathlib import Path

from berth_api import names
from devcluster import Arena
from devcluster.real_node import RealNode
from tests.node.limits import HAMI_CORE, MPS, OUT_OF_MEMORY, WHOLE, install, limits


def test_shares_by_mps_have_limits_of_their_own(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with limits(node, arena, tmp_path, mps=True) as stage:
        stage.wait(stage.offers(MPS), what="the resource on offer")
        stage.share("half", MPS, 50, 30_000)
        stage.share("quarter", MPS, 25, 1_000)
        for name in ("half", "quarter"):
            stage.wait(lambda name=name: stage.has_started(name), what=f"{name} to run")
        assert stage.seen("half") == [{"memory": WHOLE // 2, "threads": 50, "error": 0}]
        assert stage.seen("quarter") == [{"memory": WHOLE // 4, "threads": 25, "error": 0}]
        stage.share("greedy", MPS, 25, WHOLE // 4 + 1, restartPolicy="Never")
        stage.wait(lambda: stage.exit_code("greedy") == OUT_OF_MEMORY, what="the greedy one to be refused")
        assert stage.daemon.ask("get_default_device_pinned_mem_limit 0") == f"{WHOLE // 2}M"
        assert stage.reason(names.MPS_SERVING)[0] == "Serving"
        assert [stage.restarts(name) for name in ("half", "quarter")] == [0, 0]


def test_shares_by_hami_core_have_limits_of_their_own(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with limits(node, arena, tmp_path, mps=False) as stage:
        install(stage)
        stage.wait(stage.offers(HAMI_CORE), what="the resource on offer")
        stage.share("half", HAMI_CORE, 50, 30_000)
        stage.wait(lambda: stage.has_started("half"), what="half to run")
        [seen] = stage.seen("half")
        assert (seen["memory"], seen["error"]) == (WHOLE // 2, 0)
        stage.share("greedy", HAMI_CORE, 50, WHOLE // 2 + 1, restartPolicy="Never")
        stage.wait(lambda: stage.exit_code("greedy") == OUT_OF_MEMORY, what="the greedy one to be refused")
        assert stage.restarts("half") == 0
