"""`kubectl berth dashboard` as users start it: a process with the address that it prints."""

import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from devcluster import waiting
from devcluster.processes import children
from tests.page.stand_in import StandIn

KUBECTL: Final = Path(__file__).with_name("kubectl.py")
ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+/\?token=\S+")
START: Final = 60.0
STOP: Final = 20.0


class Dashboard:
    """The server; a context manager."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *flags: str) -> None:
        """Start it; `flags` are those of the command line."""
        self.log = folder / "dashboard.log"
        self.log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "berth_kubectl", "dashboard", "--no-browser", *flags]
        self._process = children.spawn(command, log=self.log, environment=environment)
        self.address = ""
        """With the token, which works once."""

    @property
    def origin(self) -> str:
        """Return the address without its token."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        """Wait for the address."""
        waiting.until(self._look, deadline=START, what="the address of the dashboard", poll=0.02)
        return self

    def _look(self) -> bool:
        text = self.log.read_text()
        if self._process.poll() is not None:
            raise AssertionError(f"the dashboard ended with {self._process.returncode}: {text}")
        found = ADDRESS.search(text)
        self.address = found[0] if found else ""
        return bool(found)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def stop(self) -> int:
        """Interrupt it, as a user does; return its exit status."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(STOP)


def recorded(stand_in: StandIn) -> dict[str, str]:
    """Return the variables with which the plug-in reads a stand-in."""
    return {"BERTH_KUBECTL": str(KUBECTL), "BERTH_STAND_IN": str(stand_in.socket)}
