"""The steps of a cleanup, in order. Each step may be repeated, so an interrupted cleanup is started again.

1. Remove what makes the API server call Berth's servers, so that no request waits for them.
2. Remove the programs, and wait for the end of their pods, which would write removed objects again. The fence and the
   other policies are still in force, so a former leader binds nothing.
3. Remove the policies, before any object or kind that they read.
4. Remove what Berth wrote to Nodes, except for the capacity that live pods need.
5. Remove what the programs created, and the definitions on request.
6. On request, wait until the live pods of step 4 have ended, and remove the rest.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar

from berth_api import crd, names, resources
from berth_client.client import Params
from berth_client.errors import ApiError, CallError
from berth_client.lists import pages
from berth_client.objects import Object
from berth_operator.commands.cleanup import installed, nodes, report
from berth_operator.commands.cleanup.installed import Item
from berth_operator.commands.cleanup.nodes import Plan, Pod
from berth_operator.commands.cleanup.programs import Ending
from berth_operator.state.watches import kueue

T = TypeVar("T")

CONCURRENT: Final = 16
"""Requests at a time: a thousand nodes take seconds, and the API server has room for others."""
POLL_SECONDS: Final = 1.0
"""Seconds between two checks of terminating pods."""
READS_PER_SECOND: Final = 100
"""Reads a second of the pods whose end the command waits for."""
ROUNDS: Final = 5
"""Times that all Nodes are read: the first writes, the others repeat what conflicted and check the result."""
MAX_ERRORS: Final = 10
"""Nodes whose errors are printed one by one."""
LIVE: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


class CleanupError(Exception):
    """A step failed; the text has a line for each problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be done."""

    namespace: str
    agent_namespace: str
    node_selector: str
    drain: bool
    seconds: float
    """Seconds to wait for each of the programs, the definitions, and the end of pods."""
    delete_definitions: bool


class ClusterApi(Protocol):
    """The subset of `ApiClient` that a cleanup uses."""

    async def request(
        self, method: str, path: str, *, params: Params | None = None, body: Any = None, decode: bool = True
    ) -> Any:
        """Return the decoded answer."""

    async def get(self, path: str) -> Object:
        """Read an object at quorum."""

    async def merge_patch(self, path: str, body: Object) -> Object:
        """Patch an object that exists."""


class Cleanup:
    """One cleanup of one cluster."""

    def __init__(self, *, api: ClusterApi, order: Order, say: Callable[[str], object]) -> None:
        self._api, self._order, self._say = api, order, say

    async def run(self) -> bool:
        """Take all steps; return whether all awaited pods have ended.

        Raises:
            CleanupError: a step failed; the later steps were not taken.
        """
        await self._delete(installed.callers())
        await self._delete(installed.programs(self._order.namespace, self._order.agent_namespace))
        await self._wait_for_programs()
        await self._delete(installed.policies())
        kept = await self._clean_nodes()
        await self._delete(installed.written(self._order.namespace))
        present = [(item, obj) for item in installed.definitions() if (obj := await self._read(item.path)) is not None]
        ours = [item for item, obj in present if self._order.delete_definitions and not crd.is_foreign(obj)]
        await self._delete(ours)
        for item in ours:
            await self._until_gone(item)
        definitions = [item for item, _ in present if item not in ours]
        if self._order.drain and kept:
            # Until the pods that need capacity have ended; then the Nodes that still keep some are read again.
            clock = asyncio.get_running_loop().time
            deadline = clock() + self._order.seconds
            pods = [pod for plan in kept for pod in plan.pods]
            self._say(f"waiting up to {self._order.seconds:g} s for pods to end: {report.listed(map(str, pods))}")
            while pods and clock() < deadline:
                await asyncio.sleep(max(POLL_SECONDS, len(pods) / READS_PER_SECOND))
                lives = await self._at_once(map(self._lives, pods))
                pods = [pod for pod, is_live in zip(pods, lives, strict=True) if is_live]
            kept = await self._clean_nodes()
        ours_waiting = {"fieldSelector": f"spec.nodeName=,spec.schedulerName={names.SCHEDULER}"}
        waiting = await self._list("/api/v1/pods", ours_waiting, lambda pod: pod["metadata"]["uid"])
        stays = report.stays(definitions, kept, len(waiting), await self._unanswered())
        for line in (*map(report.kept_node, kept), *stays):
            self._say(line)
        return not (self._order.drain and kept)

    # --- objects ----------------------------------------------------------------------------------------------

    async def _delete(self, items: Sequence[Item]) -> None:
        """Delete objects one after the other, in their order."""
        problems = []
        for item in items:
            try:
                await self._api.request("DELETE", item.path, body={"propagationPolicy": "Background"}, decode=False)
            except ApiError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    problems.append(f"{item} was not deleted: {error}")
            except CallError as error:
                problems.append(f"{item} may not be deleted: {error}")
            else:
                self._say(f"deleted {item}")
        if problems:
            raise CleanupError("\n".join(problems))

    async def _until_gone(self, item: Item) -> None:
        """Wait until a definition is gone: the API server deletes all its objects first."""

        async def left() -> list[str]:
            return [str(item)] if await self._read(item.path) is not None else []

        await self._wait(left, "still there after {seconds:g} s: {left}; its objects may have finalizers")

    async def _read(self, path: str) -> Object | None:
        """Return an object; None if it does not exist.

        Raises:
            CleanupError: it cannot be read.
        """
        try:
            return await self._api.get(path)
        except CallError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise CleanupError(f"{path} cannot be read: {error}") from error

    # --- programs ---------------------------------------------------------------------------------------------

    async def _wait_for_programs(self) -> None:
        ending = Ending()
        namespaces = {self._order.namespace, self._order.agent_namespace}
        programs = ",".join((*installed.DEPLOYMENTS, *installed.DAEMON_SETS))
        selector = {"labelSelector": f"{installed.PROGRAM_LABEL} in ({programs})"}

        async def left() -> list[str]:
            pods = [
                pod
                for namespace in sorted(namespaces)
                for pod in await self._list(f"/api/v1/namespaces/{namespace}/pods", selector, lambda pod: pod)
            ]
            return ending.running(pods, asyncio.get_running_loop().time())

        await self._wait(
            left,
            "pods of Berth still run after {seconds:g} s: {left}; does another program, such as Argo CD or Flux, create"
            " them again?",
        )

    async def _wait(self, left: Callable[[], Coroutine[Any, Any, list[str]]], problem: str) -> None:
        """Wait until nothing is left.

        Raises:
            CleanupError: something is left in the end; the text is the problem.
        """
        clock = asyncio.get_running_loop().time
        deadline, is_said = clock() + self._order.seconds, False
        while remaining := await left():
            if clock() >= deadline:
                raise CleanupError(problem.format(seconds=self._order.seconds, left=report.listed(remaining)))
            if not is_said:
                self._say(f"waiting for {len(remaining)} to end: {report.listed(remaining)}")
                is_said = True
            await asyncio.sleep(POLL_SECONDS)

    async def _list(self, path: str, params: dict[str, str], read: Callable[[Object], T]) -> list[T]:
        """Return the needed part of each object of a list, page by page.

        Whole objects of a large cluster take gigabytes.

        Raises:
            CleanupError: the list or an object cannot be read.
        """
        result: list[T] = []
        try:
            async with aclosing(pages(lambda query: self._api.request("GET", path, params=query), params)) as fetched:
                async for page in fetched:
                    result += map(read, page["items"] or ())
        except (CallError, resources.ResourceError) as error:
            raise CleanupError(f"{path} cannot be read: {error}") from error
        return result

    # --- nodes ------------------------------------------------------------------------------------------------

    async def _clean_nodes(self) -> list[Plan]:
        """Write to the Nodes until nothing is left to write; return the plans of Nodes that keep capacity."""
        selected = {"labelSelector": self._order.node_selector} if self._order.node_selector else {}
        for _ in range(ROUNDS):
            read = await self._list("/api/v1/nodes", selected, nodes.read_node)
            # The pods are read last, so that none is missing.
            pods = await self._list("/api/v1/pods", {"fieldSelector": LIVE}, nodes.read_pod)
            bound = nodes.by_node(pod for pod in pods if pod is not None)
            plans = [nodes.plan(node, bound.get(node.name, ())) for node in read]
            due = [plan for plan in plans if not plan.is_done]
            if not due:
                return [plan for plan in plans if plan.kept]
            problems = [problem for problem in await self._at_once(map(self._write_one, due)) if problem]
            if problems:
                more = len(problems) - MAX_ERRORS
                last = [f"and {more} more nodes"] if more > 0 else []
                raise CleanupError("\n".join([*problems[:MAX_ERRORS], *last]))
            self._say(f"removed what Berth wrote from {len(due)} node(s)")
        raise CleanupError(
            f"after {ROUNDS} attempts there is something to remove again on {report.listed(plan.node for plan in due)};"
            " is another operator or agent running?"
        )

    async def _write_one(self, plan: Plan) -> str:
        """Write a plan; return a problem, or an empty text.

        The sums are written first, because the label shows that there may be sums. A Node that has changed meanwhile is
        planned again in the next round. A deleted Node needs nothing.
        """
        path, version = f"/api/v1/nodes/{plan.node}", plan.version
        try:
            for target, patch in ((f"{path}/status", plan.status), (path, plan.metadata)):
                if patch is not None:
                    same = {**patch.get("metadata", {}), "resourceVersion": version}
                    written = await self._api.merge_patch(target, {**patch, "metadata": same})
                    version = written["metadata"]["resourceVersion"]
        except CallError as error:
            return "" if error.status in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT} else f"node {plan.node}: {error}"
        return ""

    async def _at_once(self, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Return the results of all calls. `CONCURRENT` of them run at a time."""
        slots = asyncio.Semaphore(CONCURRENT)

        async def run(call: Coroutine[Any, Any, T]) -> T:
            async with slots:
                return await call

        return await asyncio.gather(*map(run, calls))

    # --- Kueue ------------------------------------------------------------------------------------------------

    async def _unanswered(self) -> list[str]:
        """Return a line for each AdmissionCheck of Kueue that nothing answers now."""
        try:
            if await self._read(kueue.API) is None:
                return []
            checks = await self._list(f"{kueue.API}/admissionchecks", {}, lambda check: check)
            queues = await self._list(f"{kueue.API}/clusterqueues", {}, lambda queue: queue)
        except CleanupError as error:
            # All is removed by now: a broken Kueue is no reason to fail.
            return [f"AdmissionChecks of Kueue may wait for Berth, but {error}"]
        return report.unanswered(checks, queues)

    # --- pods -------------------------------------------------------------------------------------------------

    async def _lives(self, pod: Pod) -> bool:
        raw = await self._read(pod.path)
        return raw is not None and raw["metadata"]["uid"] == pod.uid and nodes.read_pod(raw) is not None
