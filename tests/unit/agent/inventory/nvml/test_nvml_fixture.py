"""The fixture library itself, used through unmodified nvidia-ml-py in a separate process, as by other programs."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.nvml.fixture import NvmlFixture, Process, a100, t4

PROGRAM = """
import pynvml as n
n.nvmlInit()
first, second = (n.nvmlDeviceGetHandleByIndex(i) for i in range(2))
print(n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion())
heat = n.nvmlDeviceGetTemperature(first, 0)
print(n.nvmlDeviceGetUtilizationRates(first).gpu, heat, n.nvmlDeviceGetPowerUsage(first))
print([(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(first)])
memory = n.nvmlDeviceGetMemoryInfo(first, version=n.nvmlMemory_v2)
print(memory.total >> 20, memory.reserved >> 20, memory.used >> 20)
print(n.nvmlDeviceGetCudaComputeCapability(second), n.nvmlDeviceGetSerial(second), n.nvmlDeviceGetBrand(second))
retired = len(n.nvmlDeviceGetRetiredPages(second, 1))
print(n.nvmlDeviceGetRemappedRows(first), n.nvmlDeviceGetTotalEccErrors(first, 1, 0), retired)
print(n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(b"00000000:81:00.0")))
print(n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(second))))
try:
    n.nvmlDeviceGetHandleByUUID(b"GPU-none")
except n.NVMLError as error:
    print(error)
waiting = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(second, n.nvmlEventTypeXidCriticalError, waiting)
try:
    n.nvmlEventSetWait_v2(waiting, 20)
except n.NVMLError as error:
    print(error, flush=True)
event = n.nvmlEventSetWait_v2(waiting, 10000)
print(n.nvmlDeviceGetIndex(event.device), event.eventType, event.eventData, event.gpuInstanceId)
n.nvmlEventSetFree(waiting)
n.nvmlShutdown()
"""

EXPECTED = """\
570.133.20 12080
97 61 310000
[(4711, 1024)]
81920 675 2048
(7, 5) 1320220000000 2
(0, 1, 1, 0) 3 2
1
1
Not Found
Timeout
1 8 79 4294967295
"""


def test_any_program_sees_the_machine_and_its_events(tmp_path: Path) -> None:
    busy = a100(0)
    busy.gpu_utilization, busy.temperature, busy.power, busy.used = 97, 61, 310_000, 2048 << 20
    busy.processes = [Process(pid=4711, used=1024)]
    busy.ecc_uncorrected, busy.remapped_uncorrected, busy.remapped_pending = 3, 1, True
    fixture = NvmlFixture(tmp_path, gpus=[busy, replace(t4(0), retired_pages=2)])
    fixture.write()
    command = [sys.executable, "-c", PROGRAM]
    environment = os.environ | fixture.environment()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        output = ""
        while not output.endswith("Timeout\n"):
            output += program.stdout.readline() or "Timeout\n"
        fixture.xid(1, 79)
        output += program.stdout.read()
    assert output == EXPECTED
