"""kube-scheduler with the extender as shipped, and stand-ins for its Service and its certificates."""

import asyncio
import contextlib
import re
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import Arena
from devcluster.building import programs
from tests.programs.processes import Process
from tests.stand_ins.background import Background

ROOT: Final = Path(__file__).parents[2]
SHIPPED: Final = ROOT / "manifests/components/extender/kube-scheduler.yaml"
PAGE: Final = ROOT / "docs/extender.md"
CHUNK: Final = 1 << 16
LOOK: Final = 0.05
"""Seconds between two looks at the EndpointSlice, as kube-proxy's watch is quick."""

Raw = dict[str, Any]


def certificates(folder: Path) -> Path:
    """Make certificates in a folder as the documentation says, and return the folder."""
    [script] = re.findall(r"```bash\n( *openssl .*?)```", PAGE.read_text(), re.DOTALL)
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, check=True, capture_output=True)
    return folder


def flags(arena: Arena, folder: Path, port: int, *schedulers: str) -> Mapping[str, object]:
    """Return the operator's flags for an extender that these schedulers call."""
    return {
        "extender_port": port,
        "extender_schedulers": ",".join(schedulers),
        "extender_service": f"{arena.namespace}/berth-extender",
        "extender_certificate": folder / "server/tls.crt",
        "extender_key": folder / "server/tls.key",
        "extender_client_ca": folder / "server/ca.crt",
        "pod_ip": "192.0.2.1",
    }


def shipped(kubeconfig: Path, name: str, url: str, folder: Path) -> Raw:
    """Return the shipped configuration for one scheduler name, a URL and a folder of certificates."""
    text = SHIPPED.read_text().replace("/etc/kubernetes/berth", str(folder / "client"))
    config: Raw = yaml.safe_load(text)
    [profile], [extender] = config["profiles"], config["extenders"]
    profile["schedulerName"] = name
    extender["urlPrefix"] = extender["urlPrefix"].replace("https://10.96.0.100", url)
    # The defaults of kube-scheduler's client are meant for a server that is shared.
    config["clientConnection"] = {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 10000}
    config["leaderElection"] = {"leaderElect": False}
    return config


def start(config: Raw, folder: Path, name: str) -> Process:
    """Start kube-scheduler with a configuration."""
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    program = str(programs.ensure(["kube-scheduler"])["kube-scheduler"])
    return Process(name=name, command=[program, f"--config={file}", "--secure-port=0"], folder=folder, environment={})


class Forwarder(Background):
    """Forwards TCP connections to the endpoint of an EndpointSlice, as kube-proxy does for a Service.

    Connections stay open when the endpoint changes; without an endpoint they are refused. All pods are on this machine:
    an EndpointSlice may not have its address, so only the port counts.
    """

    def __init__(self, arena: Arena) -> None:
        super().__init__(name="forwarder")
        self.url = ""
        self._arena = arena
        self._port: int | None = None

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=socket.SOMAXCONN)
        self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        looking = asyncio.create_task(self._look())
        self._is_ready()
        await self._stop.wait()
        looking.cancel()
        server.close()

    async def _look(self) -> None:
        while True:
            self._port = await asyncio.to_thread(_port, self._arena)
            await asyncio.sleep(LOOK)

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            if self._port is None:
                return
            upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self._port)
            with contextlib.closing(to_upstream):
                await asyncio.gather(_pass_on(client, to_upstream), _pass_on(upstream, to_client))
        except ConnectionError:
            pass
        finally:
            to_client.close()


def _port(arena: Arena) -> int | None:
    slices = arena.list("endpointslices", labelSelector="kubernetes.io/service-name=berth-extender")
    return next((each["ports"][0]["port"] for each in slices), None)


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    target.close()
