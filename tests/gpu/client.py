"""Compute on the cards that CUDA shows, and print what is visible: `python -m tests.gpu.client MEBIBYTES`.

It needs only the driver's libcuda, no toolkit, and no module of this project, so a container may run it from a mount.
It allocates this much memory of the first card, prints one line of JSON, and runs until it is ended.
"""

import ctypes
import json
import signal
import sys
from typing import Any, Final

CARD: Final = 0
PIECE: Final = 64
"""MiB that are allocated at a time."""
MULTIPROCESSORS: Final = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""
PATTERN: Final = 0xB5


def see(wanted: int) -> dict[str, Any]:
    """Return what CUDA shows, and how many MiB could be had; `error` is CUDA's code of what failed."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"error": str(error)}
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    for code in (
        cuda.cuInit(0),
        cuda.cuDeviceGetCount(ctypes.byref(count)),
        cuda.cuDeviceGet(ctypes.byref(device), CARD),
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
    ):
        if code:
            return {"error": code}
    return {
        "cards": [_uuid(cuda, card) for card in range(count.value)],
        "multiprocessors": _number(cuda, device),
        "free": _free(cuda),
        **_allocate(cuda, wanted),
    }


def _uuid(cuda: ctypes.CDLL, card: int) -> str:
    device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGet(ctypes.byref(device), card)
    cuda.cuDeviceGetUuid(ctypes.byref(raw), device)
    text = bytes(raw).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _number(cuda: ctypes.CDLL, device: ctypes.c_int) -> int:
    number = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(number), MULTIPROCESSORS, device)
    return number.value


def _free(cuda: ctypes.CDLL) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return free.value >> 20


def _allocate(cuda: ctypes.CDLL, wanted: int) -> dict[str, Any]:
    """Allocate and write memory, piece by piece, until there is no more."""
    had, code = 0, 0
    while had < wanted and not code:
        memory, size = ctypes.c_uint64(), ctypes.c_size_t(PIECE << 20)
        code = cuda.cuMemAlloc_v2(ctypes.byref(memory), size) or cuda.cuMemsetD8_v2(memory, PATTERN, size)
        had += 0 if code else PIECE
    return {"allocated": had, "error": code or cuda.cuCtxSynchronize()}


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(see(int(sys.argv[1])))}\n")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.pause()
