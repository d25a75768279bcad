"""A registry of images on this machine, in place of the one from which programs are downloaded.

        with ImageRegistry({"etcd": b"..."}) as registry:
            registry.write_pins(file)           # for BERTH_DOWNLOADS
            registry.answers["/blobs/"] = hang  # what it answers instead from now on

`python -m tests.stand_ins.image_registry FILE` serves the programs of the user's cache until Ctrl-C, and writes pins
for them.
"""

import gzip
import hashlib
import io
import json
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import yaml

from devcluster.building import programs, versions

Answer = Callable[[BaseHTTPRequestHandler, bytes], None]
"""Answers a request whose right answer is these bytes."""
STOPPED: Final[dict[object, threading.Event]] = {}
"""By the address of a registry: set once it stops."""


def serve(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Answer with the right content."""
    request.send_response(200)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)


def damage(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Answer with as many other bytes."""
    serve(request, bytes(byte ^ 1 for byte in content))


def lengthen(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Answer with more bytes."""
    serve(request, content + content)


def break_off(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Close the connection after half of the bytes."""
    request.send_response(200)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content[: len(content) // 2])


def miss(request: BaseHTTPRequestHandler, _: bytes) -> None:
    """Answer that there is nothing."""
    request.send_error(404)


def hang(request: BaseHTTPRequestHandler, _: bytes) -> None:
    """Answer nothing until the registry stops."""
    STOPPED[request.server.server_address].wait()


def stall(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Send half of the bytes, and no more until the registry stops."""
    break_off(request, content)
    hang(request, content)


def redirect(to: str) -> Answer:
    """Return an answer that sends the client to the same path of another address."""

    def answer(request: BaseHTTPRequestHandler, _: bytes) -> None:
        request.send_response(307)
        request.send_header("Location", to + request.path.removeprefix("http://registry.test"))
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


@dataclass
class ImageRegistry:
    """Serves an image for each program: an index, a manifest, a small layer and the layer with the program."""

    programs: Mapping[str, bytes]
    contents: dict[str, bytes] = field(default_factory=dict)
    """What is served, by the end of its path."""
    pins: dict[str, dict[str, str]] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    """Other answers, by a part of the path."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """The headers of each request."""

    def __post_init__(self) -> None:
        """Make the images."""
        for name, program in self.programs.items():
            layers = [self._layer({"etc/os-release": b""}), self._layer({f"usr/local/bin/{name}": program})]
            manifest = self._put({"layers": layers})
            platforms = [{"os": "linux", "architecture": architecture} for architecture in ("amd64", "arm64")]
            index = self._put({"manifests": [{**manifest, "platform": platform} for platform in platforms]})
            version = versions.text(programs.PROGRAMS[name].version)
            self.contents[f"v{version}"] = self.contents[str(index["digest"])]
            self.pins[name] = {"repository": f"images/{name}", "version": version, "digest": str(index["digest"])}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        STOPPED[self._server.server_address] = threading.Event()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        STOPPED[self._server.server_address].set()
        self._server.shutdown()
        self._server.server_close()

    def write_pins(self, file: Path, *, registry: str = "") -> None:
        """Write a file of pins for these images."""
        file.write_text(yaml.safe_dump({"registry": registry or self.url, "images": self.pins}))

    def _layer(self, files: Mapping[str, bytes]) -> dict[str, object]:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as layer:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o755
                layer.addfile(member, io.BytesIO(content))
        return self._put(gzip.compress(archive.getvalue(), 1, mtime=0))

    def _put(self, content: bytes | dict[str, object]) -> dict[str, object]:
        """Serve a content by its digest, and return its descriptor."""
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        self.contents[digest] = raw
        return {"digest": digest, "size": len(raw)}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.headers.append(dict(self.headers))
                content = registry.contents.get(self.path.rpartition("/")[2])
                answer: Answer = serve if content is not None or self.path.endswith("/v2/") else miss
                for part, other in registry.answers.items():
                    answer = other if part in self.path else answer
                answer(self, content or b"")

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        return Handler


if __name__ == "__main__":
    cached = {name: programs.cached(name).read_bytes() for name in programs.CLUSTER}
    with ImageRegistry(cached) as running:
        running.write_pins(Path(sys.argv[1]))
        while True:
            time.sleep(1)
