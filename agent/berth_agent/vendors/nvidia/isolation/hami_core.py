"""The provider of `berth.dev/hami-core`: HAMi's library, which is loaded before a container's own libraries.

The folder on the node has one folder with the library for each version, and the link `current` to one of them. Pods
keep the version that they were given. An old version is removed when no pod has it.
"""

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from berth_agent import files
from berth_agent.conditions import Finding
from berth_agent.isolation.provider import AnyUnit, NodeView, ProviderStatus
from berth_agent.kubelet.allocations import CHECKPOINT
from berth_agent.kubelet_api.deviceplugin_pb2 import ContainerAllocateResponse, Mount
from berth_agent.vendor import RefusedError
from berth_agent.vendors.nvidia.isolation import versions
from berth_api import names
from berth_api.names import HAMI_CORE_RESOURCE

CURRENT: Final = "current"
LIBRARY: Final = "libvgpu.so"
LOCK: Final = "lock"
IN_CONTAINER: Final = "/usr/local/vgpu/libvgpu.so"
LOCK_IN_CONTAINER: Final = "/tmp/vgpulock"  # noqa: S108 - where the library expects it
LOCK_MODE: Final = 0o1777
"""Containers of all users lock there while the library starts."""
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class NoLibraryError(Exception):
    """There is no library to give."""


class HamiCoreProvider(AnyUnit):
    """Allocates to containers the library that is installed."""

    def __init__(self, folder: Path, *, kubelet: Path, grace: float = versions.GRACE) -> None:
        """Set the library's folder, and kubelet's folder of device plugins."""
        self.resource = HAMI_CORE_RESOURCE
        self._folder = folder
        self._checkpoint = kubelet / CHECKPOINT
        self._grace = grace
        self._looked_at: object = None
        """The old versions and the time of the checkpoint, at the last look for what no pod has."""
        self._failure = ""

    async def check(self, node: NodeView) -> ProviderStatus:  # noqa: ARG002 - every node may have it
        """See whether the library is there."""
        try:
            version = self._ready().parent.name
        except NoLibraryError as error:
            finding = Finding(type=names.HAMI_CORE_INSTALLED, ok=False, reason="NotInstalled", message=str(error))
            return ProviderStatus(wanted=True, healthy=False, findings=(finding,))
        self._remove_old()
        finding = Finding(type=names.HAMI_CORE_INSTALLED, ok=True, reason="Installed", message=f"version {version}")
        return ProviderStatus(wanted=True, healthy=True, findings=(finding,))

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocateResponse:  # noqa: ARG002
        """Return the library of the current version, and the variable that loads it.

        Raises:
            RefusedError: there is no library.
        """
        library = self._ready_or_refused()
        return ContainerAllocateResponse(
            envs={"LD_PRELOAD": IN_CONTAINER},
            mounts=[
                Mount(container_path=IN_CONTAINER, host_path=str(library), read_only=True),
                Mount(container_path=LOCK_IN_CONTAINER, host_path=str(self._folder / LOCK)),
            ],
        )

    async def before_start(self, ids: Sequence[str]) -> None:  # noqa: ARG002
        """Check that there is a library: a runtime would make a folder in the place of a missing one.

        Raises:
            RefusedError: there is none.
        """
        self._ready_or_refused()

    def _remove_old(self) -> None:
        """Remove the versions that no pod has; look again when kubelet has written its checkpoint."""
        try:
            old = [*versions.old(self._folder / CURRENT, LIBRARY, before=time.time() - self._grace)]
            if not old or self._looked_at == (seen := (old, self._checkpoint.stat().st_mtime_ns)):
                return
            for version in versions.unused(old, files.read(self._checkpoint)):
                shutil.rmtree(version)
                _log.info("old version of HAMi-core removed", version=version.name)
            self._looked_at = seen
        except (OSError, ValueError) as error:
            failure = f"{self._checkpoint}: {error}"
            if failure != self._failure:
                _log.warning("old versions of HAMi-core stay, will try again", error=failure)
            self._failure = failure

    def _ready_or_refused(self) -> Path:
        try:
            return self._ready()
        except NoLibraryError as error:
            raise RefusedError(f"a container limited by HAMi-core must not start without it: {error}") from error

    def _ready(self) -> Path:
        """Return the library's path, with the folder for locks made.

        Raises:
            NoLibraryError: there is no library, or the folder cannot be made.
        """
        try:
            version = (self._folder / CURRENT).readlink().name
            library = self._folder / version / LIBRARY
            if not _VERSION.fullmatch(version) or library.is_symlink() or not library.is_file():
                raise NoLibraryError(f"{self._folder / CURRENT} leads to no {LIBRARY}")
            files.make_folder(self._folder / LOCK, mode=LOCK_MODE)
        except OSError as error:
            raise NoLibraryError(f"{error.filename or self._folder}: {error.strerror}") from error
        return library
