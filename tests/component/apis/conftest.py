"""Both kinds of event loop, for tests of servers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

Run = Callable[[Coroutine[Any, Any, None]], None]
PATIENCE = 120.0
"""Seconds for a test: uvloop drops what pytest-timeout raises."""


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return what runs a coroutine in a loop of its own."""

    def in_loop(coroutine: Coroutine[Any, Any, None]) -> None:
        runner = asyncio.Runner(loop_factory=request.param)
        runner.run(asyncio.wait_for(coroutine, PATIENCE))
        # Not after a failure: with open connections, uvloop's `close` never returns.
        runner.close()

    return in_loop
