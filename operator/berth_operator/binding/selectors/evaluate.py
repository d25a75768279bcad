"""The worker process, which reads selectors from its input and evaluates one job after another.

The worker imports little, and has a memory limit and a low CPU priority. It ends with the operator, which closes its
input. It never logs anything that it reads.
"""

import json
import os
import pickle
import resource
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from berth_operator.core.claims.selectors import DeviceView, SelectorError, compile_selector

MAX_MEMORY: Final = 256 * 2**20
"""Bytes of address space."""
NICENESS: Final = 10
MAX_SECONDS: Final = 0.5
"""Seconds after which a job ends. The remaining devices are requested again."""
MAX_TEXT: Final = 500
"""Characters of an error."""
HEADER: Final = struct.Struct("!I")
"""The length of a job in bytes."""


def main() -> None:
    """Answer jobs, each by a line of JSON, until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    source = sys.stdin.buffer
    while len(header := source.read(HEADER.size)) == HEADER.size:
        expression, views = pickle.loads(source.read(*HEADER.unpack(header)))  # noqa: S301 - the operator wrote it
        sys.stdout.write(json.dumps(answer(expression, views)) + "\n")
        sys.stdout.flush()


def answer(expression: str, views: Sequence[DeviceView]) -> dict[str, Any]:
    """Return why an expression does not compile, or its value for the first devices, or why it fails."""
    try:
        selector = compile_selector(expression)
    except SelectorError as error:
        return {"invalid": str(error)[:MAX_TEXT]}
    results: list[bool | str] = []
    ends_at = time.monotonic() + MAX_SECONDS
    for view in views:
        try:
            results.append(selector.matches(view))
        except SelectorError as error:
            results.append(str(error)[:MAX_TEXT])
        except MemoryError:
            results.append("the expression takes too much memory")
        if time.monotonic() >= ends_at:
            break
    return {"results": results}


if __name__ == "__main__":
    main()
