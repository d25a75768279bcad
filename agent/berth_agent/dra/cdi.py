"""The CDI file of a claim, which the container runtime reads at each start of a container.

kubelet starts a container again by the names that Prepare returned once. So the file stays until Unprepare. While
containers must not start, it is withdrawn: it has another name, which the runtime does not read.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from berth_agent import files
from berth_agent.dra.shares import Share
from berth_agent.kubelet.device_plugin.cdi_folder import MODE, VERSION
from berth_agent.vendor import CardAccess, Specification
from berth_api.names import DRA_DRIVER

VENDOR: Final = f"k8s.{DRA_DRIVER}"
KIND: Final = f"{VENDOR}/claim"
DRAFT: Final = f".{VENDOR}-claim.new"
"""One for all claims, which are written one after the other: an agent that is killed leaves no more than one."""
_RECORD: Final = "BERTH_CLAIM"
_PREFIX: Final = f"{VENDOR}-claim_"
_WITHDRAWN: Final = ".withdrawn"
_LISTS: Final = ("deviceNodes", "mounts", "env", "hooks")


class ClaimEdits:
    """The CDI device of a claim's device, and the names of others that complete it."""

    def __init__(self, access: CardAccess, device_id: str) -> None:
        """Compose what gives a container a card or an instance.

        Raises:
            RefusedError: a container cannot have it.
            MisconfiguredError: something does not exist that containers must have.
        """
        access.check()
        answer = access.grant([device_id])
        edits: dict[str, list[Any]] = {
            "deviceNodes": [
                {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions}
                for node in answer.devices
            ],
            "mounts": [
                {
                    "containerPath": mount.container_path,
                    "hostPath": mount.host_path,
                    "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
                }
                for mount in answer.mounts
            ],
            "env": [f"{name}={value}" for name, value in answer.envs.items()],
        }
        own = {specification["kind"]: specification for specification in access.cdi().values()}
        self.others: list[str] = []
        for name in (device.name for device in answer.cdi_devices):
            kind, _, device = name.partition("=")
            if kind not in own:
                # Of a specification that another program writes.
                self.others.append(name)
                continue
            parts = [own[kind], *(entry for entry in own[kind]["devices"] if entry["name"] == device)]
            _add(edits, (part.get("containerEdits") or {} for part in parts))
        self.edits = {kind: entries for kind, entries in edits.items() if entries}

    def with_variables(self, variables: Sequence[str]) -> Mapping[str, Any]:
        """Return the edits with further variables, as `NAME=value`."""
        return {**self.edits, "env": [*self.edits.get("env", ()), *variables]} if variables else self.edits


def _add(edits: dict[str, list[Any]], more: Iterable[Mapping[str, Any]]) -> None:
    for one in more:
        for kind in _LISTS:
            present = edits.setdefault(kind, [])
            present += [entry for entry in one.get(kind) or () if entry not in present]


def device_name(uid: str, device: str, share: Share | None = None) -> str:
    """Return the name of a claim's device in its CDI file; a claim may have several shares of a device."""
    return f"{uid}-{device}.{share.id}" if share else f"{uid}-{device}"


def specification(uid: str, *, record: str, edits: Mapping[str, Mapping[str, Any]]) -> Specification:
    """Return the content of a claim's file.

    Args:
        uid: the UID of the claim.
        record: what the claim has. It is in the edits of a CDI device that no container gets, because CDI before 0.6
            has no annotations.
        edits: the edits of the CDI devices, by their names.
    """
    devices = [
        {"name": name, "containerEdits": of_device}
        for name, of_device in {uid: {"env": [f"{_RECORD}={record}"]}, **edits}.items()
    ]
    return {"cdiVersion": VERSION, "kind": KIND, "devices": devices}


def write(folder: Path, uid: str, content: Specification) -> None:
    """Write a claim's file in one step.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    # The runtime reads whatever ends with .json, at any moment.
    files.write(path(folder, uid), orjson.dumps(content, option=orjson.OPT_INDENT_2), mode=MODE, draft=DRAFT)
    _withdrawn(folder, uid).unlink(missing_ok=True)


def read(folder: Path, uid: str) -> Specification | None:
    """Return the content of a claim's file, also if it is withdrawn; None if there is none, or it is damaged.

    Raises:
        OSError: it cannot be read.
    """
    try:
        content = _content(folder, uid)
        return content if content["devices"] else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def renewed(content: Specification, nodes: Mapping[str, Sequence[Mapping[str, Any]]]) -> Specification:
    """Return the content of a claim's file with these device nodes, by the names of CDI devices; the rest stays.

    Without any, a CDI device keeps its own.
    """
    devices = [
        {**device, "containerEdits": {**device["containerEdits"], "deviceNodes": current}}
        if (current := nodes.get(device["name"]))
        else device
        for device in content["devices"]
    ]
    return {**content, "devices": devices}


def put(folder: Path, uid: str, content: Specification, *, shown: Specification | None) -> None:
    """Write a claim's file if it has another content, `shown`, or is withdrawn.

    Raises:
        OSError: it cannot be written. Then it is withdrawn, because it may have the nodes of other devices.
    """
    if shown == content and path(folder, uid).exists():
        return
    try:
        write(folder, uid, content)
    except OSError:
        withdraw(folder, uid)
        raise


def withdraw(folder: Path, uid: str) -> bool:
    """Withdraw a claim's file, so that none of its containers starts, and return whether there is one.

    Raises:
        OSError: the runtime may still read it.
    """
    with contextlib.suppress(FileNotFoundError):
        path(folder, uid).rename(_withdrawn(folder, uid))
    return _withdrawn(folder, uid).exists()


def remove(folder: Path, uid: str) -> None:
    """Remove a claim's file, if there is one.

    Raises:
        OSError: it may still be there.
    """
    path(folder, uid).unlink(missing_ok=True)
    _withdrawn(folder, uid).unlink(missing_ok=True)


def record(folder: Path, uid: str) -> str:
    """Return the record in a claim's file, also if it is withdrawn.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    file = path(folder, uid)
    try:
        devices = _content(folder, uid)["devices"]
        [variable] = next(device["containerEdits"]["env"] for device in devices if device["name"] == uid)
        return str(variable).removeprefix(f"{_RECORD}=")
    except (KeyError, TypeError, StopIteration) as error:
        raise ValueError(f"{file}: {error!r}") from error


def path(folder: Path, uid: str) -> Path:
    """Return the path of a claim's file."""
    return folder / f"{_PREFIX}{uid}.json"


def claim_files(folder: Path) -> list[Path]:
    """Return the paths of the files of all claims, also of withdrawn ones; none if there is no folder."""
    return sorted(file for ending in ("", _WITHDRAWN) for file in folder.glob(f"{_PREFIX}*.json{ending}"))


def uid_of(file: Path) -> str:
    """Return the UID of the claim of a file."""
    return file.name.removeprefix(_PREFIX).partition(".json")[0]


def _content(folder: Path, uid: str) -> Specification:
    try:
        content = files.read(path(folder, uid))
    except FileNotFoundError:
        content = files.read(_withdrawn(folder, uid))
    specification: Specification = orjson.loads(content)
    return specification


def _withdrawn(folder: Path, uid: str) -> Path:
    return folder / f"{path(folder, uid).name}{_WITHDRAWN}"
