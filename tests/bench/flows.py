"""How much one reads to follow a pod: `python -m tests.bench.flows` counts the functions that three flows run through.

The flows run in the component tests' world, and the interpreter reports each function that is called:

* pod: from the queue to the Binding of a pod that requests a card.
* gang: from the queue to the Bindings of a gang of three.
* explain: the explanation of a pod that waits.

The last line is JSON. For each flow it has `functions`, the `files` that define them, both also outside of `core` (its
queue counts as outside, because it is part of the loop), and `frames`: the deepest stack from the first function of the
flow to the decision, both included; for a gang, to the decision of the gang.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import looptime

from berth_api import names
from berth_operator.apis.visibility.explainer import Explainer
from berth_operator.binding.scheduler import Scheduler
from berth_operator.core.decision.cycle import decide
from berth_operator.core.decision.gang import decide_gang
from berth_operator.core.decision.policy import Policy
from tests.bench import figures
from tests.component.world import World
from tests.objects.builders import NVIDIA, pod, pod_group

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = tuple(f"{ROOT / folder}/" for folder in ("agent", "api", "base", "client", "operator"))
CORE: Final = f"{ROOT}/operator/berth_operator/core/"
QUEUE: Final = f"{CORE}queue/"
MEMBERS: Final = 3
ENOUGH: Final = 5.0
"""Virtual seconds after which everything is bound, or waits."""


@dataclass(slots=True)
class Trace:
    """The product's functions that were called since the trace began."""

    first: CodeType
    decision: CodeType
    called: set[CodeType] = field(default_factory=set)
    frames: int = 0
    """Frames from `first` to a decision, both included; 0 if no decision was made below it."""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Record what the interpreter reports."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PRODUCT):
            return
        if not (code.co_name.startswith("<") and code.co_name != "<lambda>"):
            self.called.add(code)
        if code is self.decision:
            self.frames = max(self.frames, _frames(frame, self.first))

    def figures(self) -> dict[str, int]:
        """Return the flow's figures."""
        outside = {code for code in self.called if not _is_core(code.co_filename)}
        return {
            "functions": len(self.called),
            "files": len({code.co_filename for code in self.called}),
            "functions_outside_core": len(outside),
            "files_outside_core": len({code.co_filename for code in outside}),
            "frames": self.frames,
        }

    def names(self) -> list[str]:
        """Return the functions, as `file:line name`."""
        return sorted(
            f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno} {code.co_qualname}"
            for code in self.called
        )


def main() -> None:
    """Run the flows; with `-v`, also print the functions."""
    run, explain = Scheduler.run.__code__, Explainer.explain.__code__
    traces = {
        "pod": _run(_pod, Trace(run, decide.__code__)),
        "gang": _run(_gang, Trace(run, decide_gang.__code__)),
        "explain": _run(_explain, Trace(explain, decide.__code__)),
    }
    if "-v" in sys.argv[1:]:
        for name, trace in traces.items():
            print(name, *trace.names(), sep="\n  ")
    figures.result({"bench": "flows", **{name: trace.figures() for name, trace in traces.items()}})


def _run(flow: Callable[[Trace], Awaitable[None]], trace: Trace) -> Trace:
    """Run a flow in virtual time."""
    loop = looptime.new_event_loop()
    try:
        loop.run_until_complete(flow(trace))
    finally:
        loop.close()
    return trace


async def _pod(trace: Trace) -> None:
    await _bound(trace, [pod("p", {NVIDIA: "1"})])


async def _gang(trace: Trace) -> None:
    grouped = {names.POD_GROUP_LABEL: "g"}
    await _bound(trace, [pod(f"p{number}", {NVIDIA: "1"}, labels=grouped) for number in range(MEMBERS)])


async def _bound(trace: Trace, pods: list[dict[str, Any]]) -> None:
    """Trace from the queue to the Bindings of pods."""
    world = World()
    world.groups.apply("ADDED", pod_group("g", MEMBERS))
    world.add_node("a", cards=MEMBERS)
    async with world.running() as api:
        await asyncio.sleep(ENOUGH)
        world.submit(*pods)
        api.on_bound.insert(0, lambda _: sys.setprofile(None) if len(api.bound()) == len(pods) else None)
        sys.setprofile(trace)
        try:
            await asyncio.sleep(ENOUGH)
        finally:
            sys.setprofile(None)
        assert len(api.bound()) == len(pods), api.patches


async def _explain(trace: Trace) -> None:
    """Trace the explanation of a pod that waits for cards which no node has."""
    world = World()
    world.add_node("a", cards=1)
    world.submit(pod("p", {NVIDIA: "2"}))
    async with world.running():
        await asyncio.sleep(ENOUGH)
        explainer = Explainer(
            cluster=world.cluster,
            pods=world.api,
            policy=lambda _: Policy(),
            managed=lambda: {"berth-scheduler"},
            ranking=lambda _uid: None,
            reservation=lambda _uid: "",
            refusal=lambda _uid: "",
            term=lambda: 1,
        )
        sys.setprofile(trace)
        try:
            await explainer.explain("ann", "ns", "p")
        finally:
            sys.setprofile(None)


def _is_core(path: str) -> bool:
    return path.startswith(CORE) and not path.startswith(QUEUE)


def _frames(frame: FrameType, first: CodeType) -> int:
    """Return the product's frames from a function to a frame; 0 if it was not called below the function."""
    count, at = 0, frame
    while at is not None:
        count += at.f_code.co_filename.startswith(PRODUCT)
        if at.f_code is first:
            return count
        at = at.f_back  # type: ignore[assignment] # None at the end
    return 0


if __name__ == "__main__":
    main()
