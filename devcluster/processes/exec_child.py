"""Become another program, which the kernel kills as soon as its parent process dies.

The supervisor runs this file: `python exec_child.py <supervisor's pid> <program> <arguments…>`. The death signal
belongs to the process that requests it, and survives exec. So requesting it here, in the child, needs no code between
fork and exec in the supervisor.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the death signal, then replace this process by the program."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit("the kernel refused the parent-death signal")
    if os.getppid() != parent:
        sys.exit("the supervisor died before this program started")
    os.execvp(command[0], command)  # noqa: S606 - replacing this process is the point


if __name__ == "__main__":
    main()
