"""Clusters that stay in the background, each under a name in the user's state folder."""

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Final

from devcluster import waiting
from devcluster.control_plane.cluster import STOP_SECONDS
from devcluster.errors import DevclusterError
from devcluster.processes import cgroups, state

DEFAULT: Final = "berth"


def root() -> Path:
    """Return the folder that holds the named clusters."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "berth" / "devcluster"


def folder(name: str) -> Path:
    """Return the folder of one cluster."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
        raise DevclusterError(f"{name!r} is no cluster name: small letters, digits and dashes, please")
    return root() / name


def names() -> list[str]:
    """Return the clusters that are there, running or left over."""
    return sorted(path.name for path in root().glob("*") if path.is_dir())


def down(name: str) -> None:
    """Stop a cluster, wait until its processes are gone, and remove its data."""
    place = folder(name)
    if not place.exists():
        raise DevclusterError(f"there is no cluster {name}")
    pid = state.supervisor(place)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if not waiting.within(lambda: state.supervisor(place) is None, seconds=STOP_SECONDS):
            # The kernel takes its children with it.
            os.kill(pid, signal.SIGKILL)
    cgroups.sweep()
    shutil.rmtree(place, ignore_errors=True)
