"""berth_operator.process.heap, on the heap of this process."""

import asyncio
import os

from berth_operator.process import heap
from devcluster import waiting
from tests.bench.cluster import usage

MIB = 2**20
PERIOD = 0.05
SECONDS = 60.0


async def _run_until_resident_is_below(limit: int) -> None:
    running = asyncio.create_task(heap.run(PERIOD))
    await asyncio.to_thread(
        waiting.until,
        lambda: usage.resident_bytes(os.getpid()) < limit,
        deadline=SECONDS,
        what="free pages to be returned",
        poll=PERIOD,
    )
    running.cancel()


def test_free_pages_between_blocks_in_use_are_returned() -> None:
    """Blocks are larger than a page, so each gap has a free one; the last block stays, so glibc returns nothing."""
    blocks = [bytes(8_000) for _ in range(16_000)]
    kept = blocks[1::2]
    del blocks
    before = usage.resident_bytes(os.getpid())
    asyncio.run(_run_until_resident_is_below(before - 24 * MIB))
    assert len(kept) == 8_000
