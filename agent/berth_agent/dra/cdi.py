"""The CDI file of a claim, which the container runtime reads at each start of a container.

kubelet starts a container again by the names that Prepare returned once. So the file stays until Unprepare.
"""

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
CLAIM_VARIABLE: Final = "BERTH_CLAIM"
"""In edits that no container gets."""
_PREFIX: Final = f"{VENDOR}-claim_"
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
    return f"{uid}-{device}.{share.suffix}" if share else f"{uid}-{device}"


def specification(uid: str, edits: Mapping[str, Mapping[str, Any]]) -> Specification:
    """Return the content of a claim's file; `edits` are by the names of the CDI devices.

    Devices without edits are in the file, too, because it is the second record of what the claim has. CDI requires
    edits of each device.
    """
    devices = [
        {"name": name, "containerEdits": dict(one) or {"env": [f"{CLAIM_VARIABLE}={uid}"]}}
        for name, one in edits.items()
    ]
    return {"cdiVersion": VERSION, "kind": KIND, "devices": devices}


def write(folder: Path, uid: str, content: Specification) -> None:
    """Write a claim's file in one step.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    file = path(folder, uid)
    # The runtime reads whatever ends with .json, at any moment.
    files.write(file, orjson.dumps(content, option=orjson.OPT_INDENT_2), mode=MODE, draft=f".{file.stem}.new")


def path(folder: Path, uid: str) -> Path:
    """Return the path of a claim's file."""
    return folder / f"{_PREFIX}{uid}.json"


def claim_files(folder: Path) -> list[Path]:
    """Return the paths of the files of all claims; none if there is no folder."""
    return sorted(folder.glob(f"{_PREFIX}*.json"))


def uid_of(file: Path) -> str:
    """Return the UID of the claim of a file."""
    return file.stem.removeprefix(_PREFIX)
