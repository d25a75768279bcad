"""A stand-in for `nvidia-cuda-mps-control`: the documented commands, and the limits that clients were measured to have.

As in decision 35, a default applies to servers that start later, and the limits of a server apply to later clients. A
client can request less, and a text that is no memory limit avoids all limits. The stand-in knows nothing of cards.
Clients connect to the same socket as commands (tests/mps/command.py, tests/mps/cuda.c).
"""

import asyncio
import os
import re
import sys
from pathlib import Path

PIPE = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108 - NVIDIA's default
CONTROL = PIPE / "control"
CARDS = 16
NONE = -1
LIMIT = re.compile(r"([1-9]\d*)([MG])")


def mebibytes(text: str) -> int:
    """Return the MiB of a limit; NONE if it is none."""
    match = LIMIT.fullmatch(text)
    return int(match[1]) * (1024 if match[2] == "G" else 1) if match else NONE


class Limits:
    """Limits of a server, or the defaults of those to come."""

    def __init__(self, memory: dict[int, int] | None = None, threads: float = 100.0) -> None:
        self.memory = dict(memory or {})
        self.threads = threads

    def of_client(self, memory: str, threads: str) -> list[float]:
        """Return the percentage of threads and the MiB of each card of a client with these variables."""
        own = float(threads) if re.fullmatch(r"\d+(\.\d+)?", threads) else 100.0
        return [min(own, self.threads), *(self._of_card(card, memory) for card in range(CARDS))]

    def _of_card(self, card: int, memory: str) -> int:
        default = self.memory.get(card, NONE)
        if not memory:
            return default
        parts = dict(part.partition("=")[::2] for part in memory.split(","))
        asked = mebibytes(parts.get(str(card), ""))
        if any(mebibytes(limit) == NONE for limit in parts.values()):
            return NONE
        return min(limit for limit in (asked, default) if limit != NONE) if {asked, default} != {NONE} else NONE


class Daemon:
    """The daemon, and its one server."""

    def __init__(self) -> None:
        self.defaults = Limits()
        self.servers: dict[int, Limits] = {}
        self.clients: set[asyncio.StreamWriter] = set()
        self.started = 0
        self.quit = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the commands of one connection, or keep it while a client lives."""
        while line := (await reader.readline()).decode():
            words = line.rstrip("\n").split(" ")
            writer.write(f"{self.answer(words)}\n".encode())
            if words[0] == "client":
                self.clients.add(writer)
        self.clients.discard(writer)
        writer.close()

    def answer(self, words: list[str]) -> str:
        command, arguments = words[0], words[1:]
        handler = getattr(self, f"do_{command}", None)
        return str(handler(*arguments)) if handler else f"Unknown command {command}"

    def do_client(self, memory: str, threads: str) -> str:
        if not self.servers:
            self.started += 1
            self.servers[os.getpid() + self.started] = Limits(self.defaults.memory, self.defaults.threads)
        [server] = self.servers.values()
        return " ".join(f"{limit:g}" for limit in server.of_client(memory, threads))

    def do_get_server_list(self) -> str:
        return "\n".join(map(str, self.servers))

    def do_set_default_active_thread_percentage(self, percentage: str) -> float:
        self.defaults.threads = float(percentage)
        return self.defaults.threads

    def do_get_default_active_thread_percentage(self) -> float:
        return self.defaults.threads

    def do_set_active_thread_percentage(self, pid: str, percentage: str) -> float:
        self.servers[int(pid)].threads = float(percentage)
        return float(percentage)

    def do_get_active_thread_percentage(self, pid: str) -> float:
        return self.servers[int(pid)].threads

    def do_set_default_device_pinned_mem_limit(self, card: str, limit: str) -> str:
        self.defaults.memory[int(card)] = mebibytes(limit)
        return ""

    def do_get_default_device_pinned_mem_limit(self, card: str) -> str:
        return f"{self.defaults.memory.get(int(card), 0)}M"

    def do_set_device_pinned_mem_limit(self, pid: str, card: str, limit: str) -> str:
        self.servers[int(pid)].memory[int(card)] = mebibytes(limit)
        return ""

    def do_get_device_pinned_mem_limit(self, pid: str, card: str) -> str:
        return f"{self.servers[int(pid)].memory.get(int(card), 0)}M"

    def do_shutdown_server(self, pid: str, *_: str) -> str:
        del self.servers[int(pid)]
        for client in self.clients:
            client.close()
        return ""

    def do_quit(self, *_: str) -> str:
        self.quit.set()
        return ""


async def run_daemon() -> None:
    """Serve until `quit`."""
    daemon = Daemon()
    server = await asyncio.start_unix_server(daemon.serve, CONTROL)
    await daemon.quit.wait()
    server.close()
    CONTROL.unlink()


def main() -> None:
    """Run the daemon, with -d in the background."""
    if "-d" in sys.argv[1:] and os.fork():
        return
    PIPE.mkdir(parents=True, exist_ok=True)
    CONTROL.unlink(missing_ok=True)
    (PIPE / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    os.umask(0)  # containers of all users connect
    asyncio.run(run_daemon())


if __name__ == "__main__":
    main()
