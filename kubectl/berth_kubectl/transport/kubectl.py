"""kubectl as a program: its global flags, single requests, and the namespace of the context."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from berth_api.values import decoding
from berth_kubectl.errors import CommandError, ReadError

VARIABLE: Final = "BERTH_KUBECTL"
"""Names another kubectl than the one on PATH."""
TIMEOUT: Final = 60.0
"""Seconds for one request, logins included."""
STATUS: Final = {
    "NotFound": 404,
    "Forbidden": 403,
    "Unauthorized": 401,
    "Gone": 410,
    "Expired": 410,
    "TooManyRequests": 429,
    "ServiceUnavailable": 503,
}
"""kubectl's `Error from server (REASON)` -> HTTP status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """How kubectl is called."""

    program: str
    flags: tuple[str, ...] = ()
    """Global flags, such as `--context=prod` and `--as=jane`."""

    def command(self, *arguments: str) -> list[str]:
        """Return a whole command."""
        return [self.program, *self.flags, *arguments]

    def get_raw(self, path: str) -> Any:
        """Return the decoded answer of one request.

        Raises:
            ReadError: there was no answer, or an error.
        """
        text = self._output("get", "--raw", path)
        try:
            return decoding.loads(text)
        except orjson.JSONDecodeError as error:
            raise ReadError(f"GET {path}: the answer is not JSON: {error}") from error

    def namespace(self) -> str:
        """Return the namespace of the context.

        Raises:
            ReadError: kubectl could not read its configuration.
        """
        text = self._output("config", "view", "--minify", "--output=jsonpath={..namespace}")
        return text.decode().strip() or "default"

    def configuration(self) -> dict[str, Any]:
        """Return kubectl's configuration, without credentials; one without contexts if there is none.

        Raises:
            ReadError: kubectl could not read its configuration.
        """
        text = self._output("config", "view", "--output=json")
        try:
            return dict(orjson.loads(text))
        except (orjson.JSONDecodeError, TypeError, ValueError) as error:
            raise ReadError(f"kubectl config view: the answer is not JSON: {error}") from error

    def contexts(self) -> list[str]:
        """Return the names of the contexts.

        Raises:
            ReadError: kubectl could not read its configuration.
        """
        return self._output("config", "get-contexts", "--output=name").decode().split()

    def _output(self, *arguments: str) -> bytes:
        try:
            ended = subprocess.run(self.command(*arguments), capture_output=True, check=False, timeout=TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise ReadError(f"kubectl {arguments[0]}: no answer within {TIMEOUT:g} s") from error
        if ended.returncode != 0:
            raise failure(ended.stderr.decode(errors="replace"))
        return ended.stdout


def find(flags: Sequence[str] = ()) -> Kubectl:
    """Return kubectl with global flags.

    Raises:
        CommandError: there is no kubectl.
    """
    name = os.environ.get(VARIABLE) or "kubectl"
    program = shutil.which(name)
    if program is None:
        raise CommandError(f"{name} was not found on PATH; set {VARIABLE} to the path of kubectl")
    return Kubectl(program=program, flags=tuple(flags))


def failure(stderr: str) -> ReadError:
    """Return the error for what kubectl wrote on standard error: its last line that is no log line."""
    lines = [line for line in stderr.strip().splitlines() if line]
    # klog writes `E1122 15:04:05.678901   12345 file.go:12] text`.
    own = [line for line in lines if not (line[0] in "IWEF" and line[1:5].isdecimal())] or ["kubectl failed"]
    line = own[-1].removeprefix("error: ")
    head, _, message = line.partition(": ")
    reason = head.partition("(")[2].rstrip(")") if head.startswith("Error from server") else ""
    return ReadError(message if reason else line, status=STATUS.get(reason, 0), reason=reason)
