"""The doctor in the dashboard: one run at a time, whose result is cached for a while."""

import json
import threading
from http import HTTPStatus
from typing import Any

from berth_kubectl.dashboard.health import KEPT, Health
from berth_kubectl.errors import ReadError
from devcluster import waiting
from tests.programs.dashboard import PATIENCE


def test_a_result_is_kept_and_then_read_again() -> None:
    runs, moment = [], [0.0]

    def diagnose() -> dict[str, Any]:
        runs.append(moment[0])
        return {"kind": "Diagnosis", "findings": [len(runs)]}

    health = Health(diagnose, clock=lambda: moment[0])
    for moment[0] in (0.0, KEPT - 0.1, KEPT, KEPT * 2 - 0.1, KEPT * 2 + 1):
        result = health.result()
    assert runs == [0.0, KEPT, KEPT * 2 + 1]
    body = json.loads(result.body)
    assert (result.status, body["kind"], body["findings"]) == (HTTPStatus.OK, "Diagnosis", [3])
    assert body["read"].endswith("Z")


def test_requests_during_a_run_wait_for_its_result() -> None:
    running, most, runs = [0], [0], [0]
    release, lock = threading.Event(), threading.Lock()

    def diagnose() -> dict[str, Any]:
        with lock:
            running[0] += 1
            runs[0] += 1
            most[0] = max(most[0], running[0])
        assert release.wait(PATIENCE)
        with lock:
            running[0] -= 1
        return {"run": runs[0]}

    health, bodies = Health(diagnose), []
    threads = [threading.Thread(target=lambda: bodies.append(health.result().body)) for _ in range(10)]
    for thread in threads:
        thread.start()
    waiting.until(lambda: runs[0] == 1, what="the run", poll=0.01)
    release.set()
    for thread in threads:
        thread.join()
    assert (most, runs, len(set(bodies))) == ([1], [1], 1)


def test_a_failure_is_a_status_and_is_kept_as_well() -> None:
    runs, moment = [], [0.0]

    def diagnose() -> dict[str, Any]:
        runs.append(1)
        if len(runs) == 1:
            raise ReadError("the API server did not answer: <b>")
        return {}

    health = Health(diagnose, clock=lambda: moment[0])
    for _ in range(3):
        result = health.result()
    status = json.loads(result.body)
    assert (result.status, status["reason"], status["message"]) == (
        HTTPStatus.BAD_GATEWAY,
        "Unreachable",
        "the API server did not answer: <b>",
    )
    moment[0] = KEPT
    assert (health.result().status, len(runs)) == (HTTPStatus.OK, 2)
