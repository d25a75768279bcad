"""The entry points `kubectl-berth` and `kubectl_complete-berth`."""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from berth_kubectl.errors import NOT_ANSWERED, CommandError

COMPLETE: Final = "__complete"
"""What the script of `completion install` calls: archives of krew have one program."""


def main() -> None:
    """Run a command and end with its exit status."""
    if sys.argv[1:2] == [COMPLETE]:
        del sys.argv[1]
        complete()
    gc.disable()  # a command is short, and what it reads is all in use
    signal.signal(signal.SIGTERM, _end)
    _leave(run(sys.argv[1:]))


def complete() -> NoReturn:
    """Print what may follow on a command line, for kubectl's completion."""
    gc.disable()
    from berth_kubectl.commands import completing

    answer = "\n".join(completing.answer(sys.argv[1:])) + "\n"
    with contextlib.suppress(BrokenPipeError):  # the shell has enough
        sys.stdout.write(answer)
    _leave(0)


def run(arguments: Sequence[str]) -> int:
    """Run a command; return its exit status."""
    from berth_api.values.printing import printable_lines
    from berth_kubectl import arguments as command_line  # within what reports errors

    try:
        options = command_line.parse(arguments)
        status: int = options.run(options)
        sys.stdout.flush()
    except CommandError as error:
        sys.stderr.write(f"error: {printable_lines(str(error))}\n")
        return NOT_ANSWERED
    except BrokenPipeError:  # the reader has enough
        return 0
    except SystemExit as ended:  # of --help, or SIGTERM
        return int(ended.code or 0)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status


def _leave(status: int) -> NoReturn:
    """End at once: Python would free what was read object by object, half a second for 8,000 pods."""
    with contextlib.suppress(BrokenPipeError):  # the reader has enough
        sys.stdout.flush()
    os._exit(status)


def _end(*_: object) -> NoReturn:
    """End in order, so that the proxy ends too."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
