import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def iterations() -> AsyncIterator[Callable[[], int]]:
    """Count the loop's iterations."""
    count = 0

    async def counting() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(counting())
    yield lambda: count
    task.cancel()
