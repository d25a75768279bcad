"""Read a machine from the output of nvidia-smi. Pure functions, except `ask`.

Both sides of the comparison are Facts: the value of each field, by the UUID of a card or by MACHINE.
"""

import csv
import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import Final
from xml.etree import ElementTree as ET

Facts = dict[str, dict[str, str]]
Texts = Mapping[str, str]
"""The output of each of the COMMANDS."""
Row = dict[str, str]

MACHINE: Final = "machine"
FIELDS: Final = ("index", "name", "pci.bus_id", "memory.total", "compute_cap", "mig.mode.current")
"""Fields of a card that are compared without conversion."""
RETIRED: Final = ("retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count", "retired_pages.pending")
QUERY: Final = ("uuid", "driver_version", *FIELDS, *RETIRED)
COMMANDS: Final = {
    "query": (f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"),
    "details": ("-q", "-x"),
    "list": ("-L",),
    "topology": ("topo", "-m"),
    "peers": ("topo", "-p2p", "r"),
}
PATIENCE: Final = 60
"""Longest time in seconds of nvidia-smi: without persistence mode it initializes each card."""
TOO_MANY_PAGES: Final = 60
"""Number of retired pages from which NVIDIA replaces a card."""
ACTIONS: Final = {
    "Reset": {"DriverNeedsReset"},
    "Reboot": {"DriverNeedsReboot"},
    "Drain P2P": {"DriverNeedsDrain"},
    "Drain and Reset": {"DriverNeedsReset"},
}
"""Faults by the values of gpu_recovery_action."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_GAP: Final = re.compile(r"[\t ]{2,}|\t")
_CARD: Final = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)")
_INSTANCE: Final = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)")
_NOT_REPORTED: Final = frozenset(
    {"", "N/A", "Not Supported", "Unknown Error", "Requested functionality has been deprecated"}
)


def ask() -> Texts:
    """Run nvidia-smi, which only reads."""
    return {name: _run(*arguments) for name, arguments in COMMANDS.items()}


def _run(*arguments: str) -> str:
    command = ["nvidia-smi", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE).stdout


def facts(texts: Texts) -> Facts:
    """Return what nvidia-smi reports, by card and field."""
    log = ET.fromstring(texts["details"])  # noqa: S314 -- nvidia-smi's own output, not a third party's
    cards = {each["uuid"]: each for each in query(texts["query"])}
    details = {_text(each, "uuid"): each for each in log.iter("gpu")}
    rows, peers = matrix(texts["topology"]), matrix(texts["peers"])
    machine = {
        "driver_version": _text(log, "driver_version"),
        "cuda_version": _text(log, "cuda_version"),
        "troubles": "",
    }
    return {MACHINE: machine} | {
        uuid: _card(card, details[uuid], rows[f"GPU{card['index']}"], peers[f"GPU{card['index']}"])
        | _instances(texts["list"], uuid, details[uuid])
        for uuid, card in cards.items()
    }


def query(text: str) -> list[Row]:
    """Return the answer to QUERY: one row for each card."""
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    return [{name: normalized(value) for name, value in zip(QUERY, line, strict=True)} for line in lines if line]


def matrix(text: str) -> dict[str, Row]:
    """Return a table of `nvidia-smi topo`: its rows by name, the cells of each by the names of the columns.

    Columns are separated by tabs, or by spaces if the output was aligned by hand. Empty values at the end of a row have
    no cell, as on a machine without NUMA.
    """
    lines = iter(_cells(line) for line in _COLOUR.sub("", text).splitlines())
    columns = next(line for line in lines if line[0] == "GPU0")
    return {name: dict(zip(columns, cells, strict=False)) for name, *cells in _until_gap(lines)}


def _until_gap(lines: Iterator[list[str]]) -> Iterator[list[str]]:
    for line in lines:
        if line == [""]:
            return
        yield line


def _cells(line: str) -> list[str]:
    return _GAP.split(line.strip())


def _card(card: Row, details: ET.Element, row: Row, peers: Row) -> Row:
    others = [name for name in row if re.fullmatch(r"GPU\d+", name) and row[name] != "X"]
    return {
        **{name: card[name] for name in FIELDS},
        "minor_number": _text(details, "minor_number"),
        "numa": _node(row.get("NUMA Affinity", "")),
        "faults": " ".join(sorted(_faults(card, details))),
        **{f"link {name}": row[name] for name in others},
        **{f"peer {name}": "OK" if peers[name] == "OK" else "no" for name in others},
    }


def _faults(card: Row, details: ET.Element) -> set[str]:
    """Return the names of the agent's faults for what nvidia-smi reports."""
    retired = sum(int(card[name]) for name in RETIRED[:2] if card[name] != "N/A")
    faults = {
        "PageRetirementPending": card["retired_pages.pending"] == "Yes",
        "TooManyPagesRetired": retired >= TOO_MANY_PAGES,
        "RowRemapFailed": _text(details, "remapped_rows/remapped_row_failure") == "Yes",
    }
    action = ACTIONS.get(_text(details, "gpu_recovery_action"), set())
    return {name for name, there in faults.items() if there} | action


def _instances(listed: str, uuid: str, details: ET.Element) -> Row:
    """Return the MIG devices of a card, from two outputs: one lists UUIDs and profiles, the other the card of each."""
    places = {
        _text(each, "index"): f"{_text(each, 'gpu_instance_id')}/{_text(each, 'compute_instance_id')}"
        for each in details.iter("mig_device")
    }
    sections = re.split(r"\n(?=GPU )", _COLOUR.sub("", listed).strip())
    mine = next(each for each in sections if (card := _CARD.match(each)) and card[1] == uuid)
    return {f"mig {mig}": f"{profile} {places[index]}" for profile, index, mig in _INSTANCE.findall(mine)}


def _node(text: str) -> str:
    """Return the one NUMA node of a card; none if it is at several."""
    return text if text.isdecimal() else "N/A"


def _text(element: ET.Element, path: str) -> str:
    return normalized(element.findtext(path, ""))


def normalized(text: str) -> str:
    """Return one spelling for every value that nvidia-smi does not report."""
    plain = text.strip().removeprefix("[").removesuffix("]")
    return "N/A" if plain in _NOT_REPORTED else plain


def differences(agent: Facts, nvidia_smi: Facts) -> list[str]:
    """Return each field in which the agent and nvidia-smi differ."""
    return [
        f"{whose} {field}: agent {by_agent!r}, nvidia-smi {by_smi!r}"
        for whose in sorted(agent.keys() | nvidia_smi.keys())
        for field in sorted(agent.get(whose, {}).keys() | nvidia_smi.get(whose, {}).keys())
        if (by_agent := agent.get(whose, {}).get(field)) != (by_smi := nvidia_smi.get(whose, {}).get(field))
    ]
