"""The number of requests that each user sent, from the API server's audit log."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

POLICY: Final = """\
apiVersion: audit.k8s.io/v1
kind: Policy
# One line a request, when it has been answered.
omitStages: [RequestReceived, ResponseStarted]
rules:
  - level: Metadata
"""


class AuditLog:
    """The audit log of one cluster."""

    def __init__(self, folder: Path) -> None:
        self._policy, self._log = folder / "audit-policy.yaml", folder / "audit.log"
        self._policy.write_text(POLICY)

    @property
    def arguments(self) -> list[str]:
        """Return the API server's flags for the audit log."""
        return [
            f"--audit-policy-file={self._policy}",
            f"--audit-log-path={self._log}",
            # In megabytes. Large enough that the file is never rotated: requests in a rotated file would not be
            # counted.
            "--audit-log-maxsize=100000",
        ]

    def position(self) -> int:
        """Return the offset at which the next request will be written."""
        return self._log.stat().st_size

    def requests(self, user: str, *, since: int) -> Counter[str]:
        """Count a user's requests by verb and resource; a watch counts when it ends."""
        entries = self.entries(since=since, text=user)
        return Counter(_what(entry) for entry in entries if entry["user"]["username"] == user)

    def entries(self, *, since: int, text: str = "") -> Iterator[dict[str, Any]]:
        """Yield the requests whose log lines contain a text, in the order in which they were answered."""
        with self._log.open("rb") as log:
            log.seek(since)
            for line in log:
                if text.encode() in line and line.endswith(b"\n"):
                    yield json.loads(line)


def _what(event: dict[str, object]) -> str:
    about = event.get("objectRef")
    if not isinstance(about, dict):
        return f"{event['verb']} {event['requestURI']}"
    parts = (about.get("resource"), about.get("subresource"))
    return f"{event['verb']} {'/'.join(part for part in parts if part)}"
