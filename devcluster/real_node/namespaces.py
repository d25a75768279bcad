"""A node's own mounts and processes, which end with it. Runs as a file, with only the standard library.

    python namespaces.py hold <folder>                        make them; they live as long as this process
    python namespaces.py enter <pid> <program> <arguments…>   run a program in those that the process <pid> holds

When the holder ends, for whatever reason, the kernel kills every process within, including containers. The mounts end
with the last process. So nothing of a node can be left running or mounted, and nothing outside sees its mounts.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
PR_SET_PDEATHSIG = 1

KUBELET = Path("/var/lib/kubelet")
"""Where device plugins and monitors look for kubelet, whatever its options say."""
CONTAINERD = Path("/run/containerd")
"""Where shims make their sockets, whatever containerd's options say."""
LOGS = Path("/var/log")
"""Where kubelet links to the logs of containers, whatever its options say."""
FOLDERS = {
    KUBELET: "kubelet",
    Path("/run/cdi"): "cdi",
    Path("/var/lib/berth-agent"): "berth-agent",
}
"""Where pods look for folders of their node, and the names of these in the node's own folder."""
READY = "ready"

SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""What kubelet sets where it finds another value."""


def main() -> None:
    """Hold namespaces or enter them, as the arguments say."""
    verb, *arguments = sys.argv[1:]
    if verb == "hold":
        for place in (*FOLDERS, CONTAINERD):
            place.mkdir(parents=True, exist_ok=True)
        _call("unshare", CLONE_NEWNS | CLONE_NEWPID)
        _mount(None, Path("/"), flags=MS_REC | MS_SLAVE)
        first = os.fork()
        if first == 0:
            _die_with_parent()
            _arrange(Path(arguments[0]))
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            while True:
                signal.pause()
        _, status = os.waitpid(first, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    _enter(int(arguments[0]), arguments[1:])


def _arrange(folder: Path) -> None:
    _mount("proc", Path("/proc"), kind="proc")
    _mount("tmpfs", CONTAINERD, kind="tmpfs")
    _mount("tmpfs", LOGS, kind="tmpfs")
    for place, own in FOLDERS.items():
        (folder / own).mkdir(exist_ok=True)
        _mount(str(folder / own), place, flags=MS_BIND)
    # Kubelet sees the values that it expects, so it changes no setting of this machine's kernel.
    for name, value in SYSCTLS.items():
        shown = CONTAINERD / "sysctls" / name
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(f"{value}\n")
        _mount(str(shown), Path("/proc/sys") / name, flags=MS_BIND)
    (folder / READY).touch()


def _enter(holder: int, command: list[str]) -> NoReturn:
    spaces = [os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY) for name in ("mnt", "pid_for_children")]
    for space in spaces:
        _call("setns", space, 0)
        os.close(space)
    # Only a child is in the other process namespace.
    child = os.fork()
    if child == 0:
        _die_with_parent()
        os.execvp(command[0], command)  # noqa: S606 - becoming the program is the point

    def forward(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    # As a shell reports a signal.
    sys.exit(code if code >= 0 else 128 - code)


def _die_with_parent() -> None:
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _mount(source: str | None, target: Path, *, kind: str | None = None, flags: int = 0) -> None:
    _call("mount", _text(source), _text(str(target)), _text(kind), ctypes.c_ulong(flags), None)


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _call(name: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        error = os.strerror(ctypes.get_errno())
        sys.exit(f"the kernel refused {name}: {error}; a real node needs root with all of its capabilities")


if __name__ == "__main__":
    main()
