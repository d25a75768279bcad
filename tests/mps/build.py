"""Build the stand-ins for CUDA and HAMi-core, and an image in which containers use them."""

import re
import subprocess
from pathlib import Path
from typing import Final

from devcluster.building import compiler
from devcluster.real_node import image

HERE: Final = Path(__file__).parent
FLAGS: Final = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1")
IMAGE: Final = "berth.dev/tests/cuda:1"
CUDA, VGPU, CLIENT = "libcuda.so.1", "libvgpu.so", "client"


def build(folder: Path) -> None:
    """Build the two libraries and the client."""
    shared = ("-fPIC", "-shared")
    _compile(folder / CUDA, "cuda.c", *shared, f"-Wl,-soname,{CUDA}")
    _compile(folder / VGPU, "vgpu.c", *shared)
    _compile(folder / CLIENT, "client.c", str(folder / CUDA))


def write_image(archive: Path, folder: Path) -> None:
    """Write an image that runs the client, with the libraries of this machine that it needs."""
    # With the paths at which its own loader looks for them: `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`.
    listed = subprocess.run(["ldd", folder / CLIENT], capture_output=True, text=True, check=True).stdout
    libraries = [Path(path) for path in re.findall(r"(/\S+) \(0x", listed)]
    files = {str(path)[1:]: path.read_bytes() for path in libraries}
    files[f"lib/{CUDA}"] = (folder / CUDA).read_bytes()
    image.write(archive, program=folder / CLIENT, name=IMAGE, libraries=files)


def _compile(target: Path, source: str, *options: str) -> None:
    subprocess.run([*compiler.command(), *FLAGS, "-o", str(target), str(HERE / source), *options], check=True)
