"""A real Prometheus as a process of a test.

with Prometheus(folder=tmp_path / "prometheus") as prometheus:
        prometheus.scrape("berth-operator", "127.0.0.1:8081")
        prometheus.until('up{job="berth-operator"} == 1')
"""

import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from berth_operator.apis.serving import certificates
from devcluster import waiting
from devcluster.building import programs
from tests.programs.processes import Process

INTERVAL: Final = 1.0
"""Seconds between scrapes."""
REQUEST_SECONDS: Final = 20.0
LIFETIME: Final = timedelta(hours=1)
LISTENING: Final = re.compile(r'msg="Listening on".* address=\S*:(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series of an instant vector."""

    labels: Mapping[str, str]
    value: float


class QueryError(Exception):
    """Prometheus refused an expression."""


class Prometheus:
    """One Prometheus in a folder of its own, as a context manager; it keeps its port and its data over restarts."""

    def __init__(
        self,
        *,
        folder: Path,
        rules: Sequence[Path] = (),
        interval: float = INTERVAL,
        host: str = "127.0.0.1",
        https: bool = False,
    ) -> None:
        """Create one; `rules` are files of recording and alert rules, `interval` the seconds between two scrapes."""
        self.folder = folder
        self.authority: Path | None = None
        """With HTTPS, the certificate that its clients have to trust."""
        self._host = host
        self._port = 0
        self._process: Process | None = None
        (folder / "targets").mkdir(parents=True)
        _write(folder / "prometheus.yml", _configuration(interval, rules))
        if https:
            self.authority = _serve_https(folder, host)

    def __enter__(self) -> Self:
        """Start it and wait until it answers."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it."""
        self.kill()

    @property
    def url(self) -> str:
        """Return its base URL."""
        return f"{'https' if self.authority else 'http'}://{self._host}:{self._port}"

    def start(self) -> None:
        """Start it on a free port, the second time on the same one, and wait until it answers."""
        self._process = Process(name="prometheus", command=self._command(), folder=self.folder, environment={})
        self._process.logged('msg="Listening on"')
        listening = LISTENING.search(self._process.text())
        assert listening, self._process.text()
        self._port = int(listening[1])
        waiting.until(self._ready, what="Prometheus to be ready")

    def kill(self) -> None:
        """Kill it, if it runs: its port refuses connections from then on."""
        if self._process is not None and self._process.exit_code is None:
            self._process.kill()

    def restart(self) -> None:
        """Kill it and start it again with the data that it had."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop it with SIGSTOP: it accepts connections and does not answer."""
        assert self._process is not None
        self._process.pause()

    def resume(self) -> None:
        """Continue the process."""
        assert self._process is not None
        self._process.resume()

    def scrape(self, job: str, *targets: str, path: str = "/metrics", labels: Mapping[str, str] | None = None) -> None:
        """Scrape these targets (host:port) as that job from now on, in place of the job's former ones."""
        own = {"job": job, "__metrics_path__": path, **(labels or {})}
        _write(self.folder / "targets" / f"{job}.yml", [{"targets": list(targets), "labels": own}])

    def query(self, expression: str) -> list[Sample]:
        """Return the series of an expression now, none for an empty result; raise QueryError if it is invalid."""
        data = self.get("/api/v1/query", query=expression)["data"]
        if data["resultType"] == "scalar":
            return [Sample(labels={}, value=float(data["result"][1]))]
        return [Sample(labels=series["metric"], value=float(series["value"][1])) for series in data["result"]]

    def value(self, expression: str) -> float | None:
        """Return the value of an expression of one series, None while there is no such series."""
        samples = self.query(expression)
        assert len(samples) <= 1, samples
        return samples[0].value if samples else None

    def until(self, expression: str, *, deadline: float = waiting.PATIENCE) -> list[Sample]:
        """Wait until an expression has a result, and return it."""
        return waiting.until(lambda: self.query(expression), deadline=deadline, what=expression)

    def get(self, path: str, **parameters: str) -> Any:
        """Return the JSON answer of a path of its API."""
        try:
            return json.loads(self._request(f"{path}?{urllib.parse.urlencode(parameters)}"))
        except urllib.error.HTTPError as error:
            raise QueryError(f"{parameters}: {error.read().decode()}") from None

    def _request(self, path: str) -> bytes:
        context = ssl.create_default_context(cafile=self.authority) if self.authority else None
        url = f"{self.url}{path}"
        with urllib.request.urlopen(url, timeout=REQUEST_SECONDS, context=context) as answer:  # noqa: S310 - loopback
            content: bytes = answer.read()
        return content

    def _ready(self) -> bool:
        try:
            return bool(self._request("/-/ready"))
        except urllib.error.HTTPError:
            return False

    def _command(self) -> list[str]:
        return [
            str(programs.ensure(programs.MONITORING)["prometheus"]),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            # Otherwise a new target is scraped after five seconds.
            "--scrape.discovery-reload-interval=100ms",
            f"--web.listen-address={self._host}:{self._port}",
            *([f"--web.config.file={self.folder / 'web.yml'}"] if self.authority else []),
        ]


def _configuration(interval: float, rules: Sequence[Path]) -> dict[str, Any]:
    times = {"scrape_interval": f"{round(interval * 1000)}ms", "scrape_timeout": f"{round(interval * 1000)}ms"}
    targets = {"files": ["targets/*.yml"], "refresh_interval": "1s"}
    return {
        "global": {**times, "evaluation_interval": times["scrape_interval"]},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [{"job_name": "tests", "file_sd_configs": [targets]}],
    }


def _serve_https(folder: Path, host: str) -> Path:
    """Configure HTTPS with a new self-signed certificate; return the certificate."""
    pair = certificates.issue(host, datetime.now(UTC), LIFETIME)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    _write(folder / "web.yml", {"tls_server_config": {"cert_file": str(certificate), "key_file": str(key)}})
    return certificate


def _write(path: Path, content: object) -> None:
    """Write a YAML file in one step: Prometheus may read it at any time."""
    draft = path.with_suffix(".draft")
    draft.write_text(yaml.safe_dump(content))
    draft.rename(path)
