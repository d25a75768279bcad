"""The parser of nvidia-smi's output, so that `make test-gpu` compares the intended values."""

import pytest

from tests.gpu import smi

H100 = "GPU-0aa1d6c4-0000-4000-8000-000000000001"
L40S = "GPU-0aa1d6c4-0000-4000-8000-000000000002"
A100 = "GPU-0aa1d6c4-0000-4000-8000-000000000003"
LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n  NV#  = # NVLinks\n"

ONE = f"\t\x1b[4mGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \t0-15\t0\t\tN/A\n{LEGEND}"
NO_NUMA = f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t\t\t\tN/A\n{LEGEND}"
TWO = f"""\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPHB\tPIX\t0-31,64-95\t0\t\tN/A
GPU1\tPHB\t X \tSYS\t32-63,96-127\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t
{LEGEND}
NIC Legend:

  NIC0: mlx5_0
"""
ALIGNED = """\
        GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV4     PIX     0-23            0-1
GPU1    NV4      X      SYS     0-23            N/A
"""


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        pytest.param(
            TWO,
            {
                "GPU0": ["X", "PHB", "PIX", "0-31,64-95", "0", "N/A"],
                "GPU1": ["PHB", "X", "SYS", "32-63,96-127", "1", "N/A"],
                "NIC0": ["PIX", "SYS", "X"],
            },
            id="tabs, a NIC and legends",
        ),
        pytest.param(
            ALIGNED,
            {"GPU0": ["X", "NV4", "PIX", "0-23", "0-1"], "GPU1": ["NV4", "X", "SYS", "0-23", "N/A"]},
            id="aligned",
        ),
    ],
)
def test_the_matrix(text: str, rows: dict[str, list[str]]) -> None:
    assert {name: list(row.values()) for name, row in smi.matrix(text).items()} == rows


def details(uuid: str, extra: str = "", *, failure: str = "No", action: str = "None") -> str:
    return f"""
\t<gpu id="00000000:3B:00.0">
\t\t<uuid>{uuid}</uuid>
\t\t<minor_number>4</minor_number>
\t\t<gpu_recovery_action>{action}</gpu_recovery_action>
\t\t<remapped_rows>
\t\t\t<remapped_row_pending>No</remapped_row_pending>
\t\t\t<remapped_row_failure>{failure}</remapped_row_failure>
\t\t</remapped_rows>{extra}
\t</gpu>"""


def texts(row: str, gpu: str, listed: str = "", topology: str = ONE) -> smi.Texts:
    uuid = row.partition(",")[0]
    return {
        "query": row,
        "details": f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<driver_version>580.159.04</driver_version>
\t<cuda_version>13.0</cuda_version>
\t<attached_gpus>1</attached_gpus>{gpu}
</nvidia_smi_log>
""",
        "list": f"GPU 0: NVIDIA Something (UUID: {uuid})\n{listed}",
        "topology": topology,
        "peers": " \tGPU0\t\n GPU0\tX\t\n",
    }


@pytest.mark.parametrize(
    ("topology", "numa"),
    [
        pytest.param(ONE, "0", id="of one NUMA node"),
        pytest.param(NO_NUMA, "N/A", id="of a machine without NUMA"),
        pytest.param(ONE.replace("0-15\t0", "0-15\t0-1"), "N/A", id="of several NUMA nodes"),
    ],
)
def test_one_h100(topology: str, numa: str) -> None:
    row = f"{H100}, 580.159.04, 0, NVIDIA H100 80GB HBM3, 00000000:3B:00.0, 81559, 9.0, Disabled, [N/A], [N/A], [N/A]\n"
    assert smi.facts(texts(row, details(H100), topology=topology)) == {
        smi.MACHINE: {"driver_version": "580.159.04", "cuda_version": "13.0", "troubles": ""},
        H100: {
            "index": "0",
            "name": "NVIDIA H100 80GB HBM3",
            "pci.bus_id": "00000000:3B:00.0",
            "memory.total": "81559",
            "compute_cap": "9.0",
            "mig.mode.current": "Disabled",
            "minor_number": "4",
            "numa": numa,
            "faults": "",
        },
    }


@pytest.mark.parametrize("nothing", ["[N/A]", "[Not Supported]", "N/A"])
def test_a_card_that_knows_no_mig(nothing: str) -> None:
    nothings = ", ".join([nothing] * 4)
    row = f"{L40S}, 535.261.03, 0, NVIDIA L40S, 00000000:01:00.0, 46068, 8.9, {nothings}\n"
    facts = smi.facts(texts(row, details(L40S, action="", failure="N/A")))[L40S]
    assert (facts["mig.mode.current"], facts["faults"]) == ("N/A", "")


def test_instances_are_put_together_from_two_places() -> None:
    row = f"{A100}, 570.133.20, 0, NVIDIA A100-SXM4-80GB, 00000000:3B:00.0, 81920, 8.0, Enabled, [N/A], [N/A], [N/A]\n"
    devices = """
\t\t<mig_devices>
\t\t\t<mig_device>
\t\t\t\t<index>0</index>
\t\t\t\t<gpu_instance_id>2</gpu_instance_id>
\t\t\t\t<compute_instance_id>0</compute_instance_id>
\t\t\t</mig_device>
\t\t</mig_devices>"""
    listed = """\
  MIG 1g.10gb+me  Device  0: (UUID: MIG-0aa1d6c4-0000-5000-8000-000000000001)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-0aa1d6c4-0000-4000-8000-000000000009)
  MIG 7g.80gb     Device  0: (UUID: MIG-0aa1d6c4-0000-5000-8000-000000000003)
"""
    facts = smi.facts(texts(row, details(A100, devices), listed))[A100]
    assert {field: value for field, value in facts.items() if field.startswith("mig")} == {
        "mig.mode.current": "Enabled",
        "mig MIG-0aa1d6c4-0000-5000-8000-000000000001": "1g.10gb+me 2/0",
    }


@pytest.mark.parametrize(
    ("retired", "failure", "action", "expected"),
    [
        ("10, 49, No", "No", "None", ""),
        ("10, 50, No", "No", "None", "TooManyPagesRetired"),
        ("0, 1, Yes", "N/A", "N/A", "PageRetirementPending"),
        ("[N/A], [N/A], [N/A]", "Yes", "Drain and Reset", "DriverNeedsReset RowRemapFailed"),
    ],
)
def test_figures_become_the_faults_of_the_agent(retired: str, failure: str, action: str, expected: str) -> None:
    row = f"{A100}, 570.133.20, 0, NVIDIA A100, 00000000:3B:00.0, 81920, 8.0, Disabled, {retired}\n"
    assert smi.facts(texts(row, details(A100, failure=failure, action=action)))[A100]["faults"] == expected
