"""Outside the vendors' folders, the agent has a vendor's words only where they are API."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

AGENT: Final = Path(__file__).parents[3] / "agent/berth_agent"
WORDS: Final = re.compile(
    "nvidia|nvml|nvlink|nvswitch|nvenc|nvdec|xid|imex|cuda|dcgm|amdgpu|amd[.]com|rocm|xgmi|kfd|intel|gaudi|ascend|huawei"
)
ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    # Values and names of flags, and the variables and the file of NVIDIA's plugin.
    "app.py": frozenset({"nvml"}),
    "configuration/__init__.py": frozenset({"nvidia"}),
    "configuration/options.py": frozenset({"nvidia", "nvml", "imex"}),
    "configuration/settings.py": frozenset({"nvidia", "nvml", "xid", "cuda", "intel", "amd.com", "kfd"}),
    "health/checks.py": frozenset({"nvidia", "xid"}),
    "usage/reporter.py": frozenset({"nvml"}),
    # The name of a metric, and the descriptions of others.
    "inventory/completed.py": frozenset({"xid"}),
    "inventory/interface.py": frozenset({"xid"}),
    "inventory/device_infos.py": frozenset({"xid"}),
    "inventory/plugins.py": frozenset({"xid"}),
    "metrics/exporter.py": frozenset({"xid"}),
    "metrics/series.py": frozenset({"nvidia", "nvenc", "nvdec", "xid", "dcgm"}),
    "vendor.py": frozenset({"nvidia", "xid"}),
    # Integrated graphics and management displays, which are no GPUs.
    "inventory/sysfs.py": frozenset({"intel"}),
    # FPGAs are no GPUs.
    "inventory/discovery/fpga.py": frozenset({"intel"}),
    # Names of resources that pods request.
    "kubelet/admission/pods.py": frozenset({"cuda"}),
    "kubelet/device_plugin/plugin_server.py": frozenset({"nvidia"}),
    # Variables that limit the shares of a container.
    "dra/shares.py": frozenset({"cuda"}),
    # A type of links.
    "dra/devices.py": frozenset({"nvlink"}),
    "kubelet/device_plugin/preferred.py": frozenset({"nvidia", "nvlink", "nvswitch"}),
    # Texts that kubelet shows as NVIDIA's plugin does.
    "kubelet/device_plugin/offered_ids.py": frozenset({"nvidia"}),
    # What a limit of the driver's cannot hold.
    "usage/exceeding.py": frozenset({"cuda"}),
    "usage/unheld.py": frozenset({"cuda"}),
}


def words_of_vendors() -> Iterator[tuple[str, frozenset[str]]]:
    for file in sorted(AGENT.rglob("*.py")):
        name = file.relative_to(AGENT).as_posix()
        if words := frozenset(WORDS.findall(file.read_text().lower())):
            yield name, words


def test_a_vendors_words_stand_in_its_folder() -> None:
    outside = {name: words for name, words in words_of_vendors() if not name.startswith("vendors/")}
    assert outside == ALLOWED
