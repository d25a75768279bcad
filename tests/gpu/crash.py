"""Write to memory that is not allocated, on one card, and print CUDA's code: `python -m tests.gpu.crash UUID`.

The driver ends the process's context and reports an Xid. Nothing else on the card is affected. It needs only libcuda,
which compiles the kernel itself.
"""

import ctypes
import os
import sys
from typing import Final

KERNEL: Final = b"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry crash() {
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 64;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""


def crash(cuda: ctypes.CDLL) -> int:
    """Run the kernel; return the code with which CUDA reports its end."""
    device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    _check("cuInit", cuda.cuInit(0))
    _check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0))
    _check("cuCtxCreate_v2", cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    _check("cuModuleLoadData", cuda.cuModuleLoadData(ctypes.byref(module), KERNEL))
    _check("cuModuleGetFunction", cuda.cuModuleGetFunction(ctypes.byref(function), module, b"crash"))
    _check("cuLaunchKernel", cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
    code: int = cuda.cuCtxSynchronize()
    return code


def _check(function: str, code: int) -> None:
    if code:
        sys.exit(f"{function} failed with {code}")


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = sys.argv[1]
    sys.stdout.write(f"{crash(ctypes.CDLL('libcuda.so.1'))}\n")
