"""The pods that an account has deleted or evicted, by the API server's audit log. etcd does not record the writer."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

LOG: Final = "audit.log"
POLICY: Final = "audit-policy.json"
RUN: Final = "run.json"
"""What an audit of a recorded history has to know of the run."""
RULES: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "omitManagedFields": True,
    "rules": [
        {"level": "Request", "verbs": ["delete"], "resources": [{"group": "", "resources": ["pods"]}]},
        {"level": "Request", "verbs": ["create"], "resources": [{"group": "", "resources": ["pods/eviction"]}]},
        {"level": "None"},
    ],
}
SUCCESS: Final = range(200, 300)


def arguments(folder: Path) -> Sequence[str]:
    """Return the arguments of an API server that logs deletions of pods to a folder."""
    policy = folder / POLICY
    policy.write_text(json.dumps(RULES))
    return [f"--audit-policy-file={policy}", f"--audit-log-path={folder / LOG}"]


def deleted(log: Path, account: str) -> frozenset[str]:
    """Return the UIDs of the pods that an account has deleted or evicted, by the preconditions of its requests."""
    return frozenset(_uids(log, account))


def _uids(log: Path, account: str) -> Iterator[str]:
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        if entry["user"]["username"] == account and entry.get("responseStatus", {}).get("code") in SUCCESS:
            yield from filter(None, [_precondition(entry.get("requestObject") or {})])


def _precondition(body: dict[str, Any]) -> str:
    options = body.get("deleteOptions") or body
    if options.get("dryRun"):
        return ""
    return str((options.get("preconditions") or {}).get("uid") or "")
