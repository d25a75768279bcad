"""Write the answers of the AdmissionCheck `berth.dev/fits-devices`, and report which AdmissionChecks are served.

An answer is dropped when it is outdated: the Workload is gone, was replaced by another one of the same name, or has
lost its quota. Each write names the resourceVersion that was read. So nothing is written into a Workload whose quota
Kueue has just taken away. The leader's term is the field manager (`manifests/components/kueue/checks.yaml`). After a
conflict, the answer waits until the watch shows the newer version.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_api.values.backoff import ExponentialBackoff
from berth_client import times
from berth_client.client import JSON_PATCH, METADATA
from berth_client.errors import CallError
from berth_operator.binding.workloads import check_objects
from berth_operator.binding.workloads.check_objects import Patch
from berth_operator.binding.write_fence import NotFencedError, WriteFence
from berth_operator.core.values.quota_workload import CheckAnswer
from berth_operator.state.objects.workloads import WorkloadView
from berth_operator.state.watches.kueue import QuotaObjects

IN_FLIGHT: Final = 8
"""Writes under way at the same time."""
PAUSE: Final = 2.0
"""Seconds without a write after an unanswered write, and until a refused write is sent again."""
BACKOFF: Final = ExponentialBackoff(first=PAUSE, longest=300.0)
"""Until a refused write is sent again."""
ACTIVE_SECONDS: Final = 30.0
"""Seconds between two checks of the condition `Active`, where no event calls for one."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class AdmissionCheckApi(Protocol):
    """The subset of `ApiClient` that is used here."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        accept: str,
        decode: bool,
    ) -> Any:
        """Send one request."""


class CheckWriter:
    """Writes the answers of one term."""

    def __init__(
        self,
        *,
        api: AdmissionCheckApi,
        objects: QuotaObjects,
        lease: str,
        term: Callable[[], int | None],
        fenced: bool,
    ) -> None:
        """Create a writer; `fenced`: nothing is written unless the API server refuses the writes of other terms."""
        self._api, self._objects, self._term = api, objects, term
        self._fence = WriteFence(lease=lease, what="kueue", required=fenced)
        self._answers: dict[str, CheckAnswer] = {}
        """namespace/name -> answer that is not written yet."""
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        """What is in the queue, each once."""
        self._busy: set[str] = set()
        self._pauses: dict[str, float] = {}
        """namespace/name -> seconds until its answer, which was refused, is sent again after the next refusal."""
        self._pausing: set[str] = set()
        """What will be sent again after a pause, each once."""
        self._changed = asyncio.Event()
        """Set when an AdmissionCheck has changed."""
        self._is_fenced = asyncio.Event()
        """Set once the fence has passed its test in this term."""
        self._problem = ""
        objects.on_change, objects.on_check = self._follow, self._changed.set

    def answer(self, answer: CheckAnswer) -> None:
        """Take the answer for a Workload, in place of one that was not written yet."""
        self._answers[answer.workload.key] = answer
        self._enqueue(answer.workload.key)

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_active())
            for _ in range(IN_FLIGHT):
                tasks.create_task(self._work())

    # --- answers ----------------------------------------------------------------------------------------------

    def _follow(self, key: str) -> None:
        """Write what waits for a newer version of a Workload, or for the end of a pause."""
        if key in self._answers:
            self._enqueue(key)

    def _enqueue(self, key: str) -> None:
        if key not in self._queued:
            self._queued.add(key)
            self._queue.put_nowait(key)

    async def _work(self) -> None:
        await self._is_fenced.wait()
        while True:
            key = await self._queue.get()
            self._queued.discard(key)
            answer, view = self._answers.get(key), self._objects.views.get(key)
            if key in self._busy or answer is None:
                continue
            if view is None or _is_outdated(view, answer) or check_objects.shows(view, answer):
                self._end(key)
                continue
            self._busy.add(key)
            patch = check_objects.answered(view, answer, times.time(times.now()))
            try:
                await self._patch(check_objects.path(key), patch)
            except CallError as error:
                await self._failed(key, error)
            else:
                if self._answers.get(key) is answer:
                    self._end(key)
            finally:
                self._busy.discard(key)
            # Another answer, or a newer version, may have come meanwhile.
            if key in self._answers and self._objects.views.get(key) is not view:
                self._enqueue(key)

    async def _failed(self, key: str, error: CallError) -> None:
        """Drop the answer of a Workload that is gone, and send others again later.

        After a conflict that is when a newer version is known, or after the pause: a webhook may refuse with the same
        status. Only if the API server gives no answer do other Workloads wait, too.
        """
        if error.is_missing:
            self._end(key)
            return
        if error.status != HTTPStatus.CONFLICT or key in self._pauses:
            self._report(str(error))
        if not error.status:
            await asyncio.sleep(PAUSE)
            self._enqueue(key)
            return

        def send_again() -> None:
            self._pausing.discard(key)
            self._follow(key)

        self._pauses[key] = pause = BACKOFF.following(self._pauses.get(key, 0.0))
        if key not in self._pausing:
            self._pausing.add(key)
            asyncio.get_running_loop().call_later(pause, send_again)

    def _end(self, key: str) -> None:
        """Forget the answer of a Workload."""
        del self._answers[key]
        self._pauses.pop(key, None)

    async def _patch(self, path: str, patch: Patch, params: Mapping[str, str] | None = None) -> None:
        """Send a patch in our term; do nothing if the term has ended."""
        if (term := self._term()) is None:
            return
        await self._api.request(
            "PATCH",
            path,
            params=params or {"fieldManager": self._fence.manager(term)},
            body=patch,
            content_type=JSON_PATCH,
            accept=METADATA,
            decode=False,
        )

    # --- AdmissionChecks --------------------------------------------------------------------------------------

    async def _keep_active(self) -> None:
        """Keep the condition `Active` of our AdmissionChecks: without it Kueue admits nothing to their queues."""
        while True:
            self._changed.clear()
            wait = ACTIVE_SECONDS
            for name in sorted(self._objects.checks):
                if (check := self._objects.checks.get(name)) is None:
                    continue  # deleted while another was written
                try:
                    await self._activate(check, check_objects.check_path(name))
                except CallError as error:
                    if error.status != HTTPStatus.CONFLICT:
                        self._report(str(error))
                    wait = PAUSE
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    async def _activate(self, check: Mapping[str, Any], path: str) -> None:
        """Write the condition; nothing is written into Workloads before the fence has passed its test by this check."""
        now = times.time(times.now())
        problem, reason = _problem(check), "BadParametersRef"
        tested = check_objects.with_condition(check, check_objects.condition(check, "a test", "Test", now))
        try:
            if (term := self._term()) is not None:
                await self._fence.check(term, lambda params: self._patch(path, tested, params))
                self._is_fenced.set()
        except NotFencedError as error:
            problem, reason = str(error), "NotFenced"
            self._report(problem)
        if patch := check_objects.with_condition(check, check_objects.condition(check, problem, reason, now)):
            await self._patch(path, patch)

    def _report(self, problem: str) -> None:
        """Log a problem once, not at each attempt."""
        if problem != self._problem:
            log.warning("admission check not written, will try again", reason=problem)
        self._problem = problem


def _is_outdated(view: WorkloadView, answer: CheckAnswer) -> bool:
    """Return whether a Workload is not the decided Workload, or no longer in the same quota reservation."""
    now, then = view.workload, answer.workload
    return (now.uid, now.since) != (then.uid, then.since) or not now.has_quota or now.finished


def _problem(check: Mapping[str, Any]) -> str:
    """Return why an AdmissionCheck cannot be served; empty if it can."""
    if check["spec"].get("parameters"):
        return "spec.parameters: this check has none; remove them (its settings are in Berth's configuration)"
    return ""
