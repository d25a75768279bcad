"""The audit logs of the API servers of all clusters that a session starts, if `BERTH_AUDIT` names a folder for them."""

import json
import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "BERTH_AUDIT"
SUFFIX: Final = ".audit.log"
FILE_MIB: Final = 512
POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "omitManagedFields": True,
    # Controllers, whose tokens no test has.
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata"},
    ],
}


def arguments(folder: Path) -> list[str]:
    """Return the API server's arguments for the cluster in a folder; none if nothing is to be logged."""
    target = os.environ.get(VARIABLE)
    if not target:
        return []
    logs = Path(target).absolute()
    logs.mkdir(parents=True, exist_ok=True)
    policy = logs / "policy.yaml"
    policy.write_text(json.dumps(POLICY))
    return [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={logs / folder.parent.name}-{folder.name}-{os.getpid()}{SUFFIX}",
        f"--audit-log-maxsize={FILE_MIB}",
        "--audit-log-mode=batch",
        "--audit-log-batch-max-wait=1s",
    ]
