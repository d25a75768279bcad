"""kopf's thread starts and stops without errors, whenever the term ends."""

import asyncio
from pathlib import Path

import pytest

from berth_operator.clients.kube import KubeClient
from berth_operator.controllers.handlers.marks import Marks
from berth_operator.controllers.handlers.memo import Memo
from berth_operator.controllers.handlers.thread import KopfThread
from berth_operator.settings.flags import Settings
from berth_operator.state.cache.cluster import Cluster

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
"""Address of an API server that is away: kopf keeps trying."""


def memo(folder: Path, loop: asyncio.AbstractEventLoop | None = None, health: str = "") -> Memo:
    (folder / "kubeconfig").write_text(KUBECONFIG)
    settings = Settings.model_construct(
        **{name: field.default for name, field in Settings.model_fields.items()}
        | {"kubeconfig": folder / "kubeconfig", "health": health}
    )
    return Memo(
        settings=settings,
        problem=lambda: "",
        busy=lambda: False,
        cluster=Cluster(grace=10),
        marks=Marks(asyncio.get_running_loop()),
        loop=loop or asyncio.get_running_loop(),
    )


async def are_served() -> bool:
    return True


@pytest.mark.parametrize("seconds", [0.0, 0.03, 0.3])
async def test_term_that_ends_while_kopf_starts_leaves_no_traceback(
    tmp_path: Path, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    shared = memo(tmp_path)
    kopf = KopfThread(memo=shared, are_served=are_served)
    running = asyncio.create_task(kopf.run())
    shared.lead()
    await asyncio.wait([running], timeout=seconds)

    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.wait_for(kopf.stop(), 30)

    assert [record for record in caplog.records if record.exc_info] == []


async def test_memo_can_be_printed_before_kopf_has_started(tmp_path: Path) -> None:
    assert "Memo" in repr(memo(tmp_path))


async def test_kopf_that_outlives_the_scheduler_ends_in_order(tmp_path: Path) -> None:
    ended = asyncio.new_event_loop()
    ended.close()
    shared = memo(tmp_path, ended)
    failures: list[BaseException] = []
    shared.failed = failures.append
    shared.lead()
    shared.start(await KubeClient.connect(tmp_path / "kubeconfig", "berth-test"))
    assert shared.writing is not None
    await asyncio.wait([shared.writing])
    await shared.stop()
    assert failures == []
