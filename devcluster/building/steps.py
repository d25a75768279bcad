"""Progress of something slow: one line per step with its elapsed time.

On a terminal, the lines move. Elsewhere, each step prints a plain line when it starts and when it ends, so that a CI
log shows the current step.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Step = Callable[[str], AbstractContextManager[None]]


@contextmanager
def shown(title: str) -> Iterator[Step]:
    """Show steps on stderr under a title; stdout stays free for what a shell evaluates."""
    console = Console(stderr=True)
    if not console.is_terminal:
        say(title)
        yield _plain_step
        return
    console.print(f"devcluster: {title}", highlight=False)
    columns = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield lambda name: _moving_step(progress, name)


@contextmanager
def _moving_step(progress: Progress, name: str) -> Iterator[None]:
    task = progress.add_task(name, total=1)
    yield
    progress.update(task, completed=1)


@contextmanager
def _plain_step(name: str) -> Iterator[None]:
    started = time.monotonic()
    say(f"{name} ...")
    yield
    say(f"{name}: {time.monotonic() - started:.0f} s")


def say(text: str) -> None:
    """Show one line."""
    print(f"devcluster: {text}", file=sys.stderr, flush=True)
