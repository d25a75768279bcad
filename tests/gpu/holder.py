"""Holds one card with a CUDA context and some memory until its input ends: `python -m tests.gpu.holder UUID`.

It needs only the driver's libcuda, no toolkit. It prints `held` once it holds the card.
"""

import ctypes
import os
import sys
from typing import Final

HELD: Final = "held"
MEMORY: Final = 64 << 20


def hold(cuda: ctypes.CDLL) -> None:
    """Create a context on the one visible card, and allocate memory of it."""
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    _check("cuInit", cuda.cuInit(0))
    _check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0))
    _check("cuCtxCreate_v2", cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    _check("cuMemAlloc_v2", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(MEMORY)))


def _check(function: str, code: int) -> None:
    if code:
        sys.exit(f"{function} failed with {code}")


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = sys.argv[1]
    hold(ctypes.CDLL("libcuda.so.1"))
    print(HELD, flush=True)  # noqa: T201 -- the process that started it waits for this line
    sys.stdin.read()
