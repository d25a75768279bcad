"""The sources of metrics. A source reads all cards once, from Prometheus or from each agent."""

import asyncio
import functools
import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from berth_client.client import ApiClient
from berth_client.errors import CallError
from berth_operator.core.values.gpu_metrics import CardSample
from berth_operator.metrics.gpu import exposition, families, services
from berth_operator.metrics.gpu.answers import AnswerError, vector
from berth_operator.metrics.gpu.families import FAMILIES, Collector
from berth_operator.metrics.gpu.fetching import Fetcher, FetchError

Object = Mapping[str, Any]

AGENT_LABEL: Final = "app.kubernetes.io/name=berth-agent"
LIST_SECONDS: Final = 60.0
"""Seconds between two lists of the agents' pods."""
MAX_AGENTS: Final = 5000
AT_ONCE: Final = 32
"""Agents that are asked at the same time."""
AGENT_SECONDS: Final = 3.0
"""Deadline of one agent."""
AGENT_BYTES: Final = 2**20
SLICE: Final = 128
"""Series of an answer that are read in one turn of the loop, which takes less than a millisecond."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class SourceError(Exception):
    """Nothing could be read. The text shows why."""


class Source(Protocol):
    """The interface of sources."""

    async def read(self) -> Iterable[CardSample]:
        """Return the current measurements of all cards.

        Raises:
            SourceError: nothing could be read.
        """


# --- Prometheus -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusAddress:
    """How to reach Prometheus."""

    url: str = ""
    """Empty to search Services."""
    namespaces: tuple[str, ...] = ()
    """The namespaces whose Services are searched."""
    token: Path | None = None
    """File with a bearer token, read for each request because it may be renewed; sent by https only."""


class Prometheus:
    """Reads all cards by a few queries, the same whatever the number of cards."""

    def __init__(self, *, api: ApiClient, fetcher: Fetcher, address: PrometheusAddress, max_age: float) -> None:
        self._api, self._fetcher, self._address, self._max_age = api, fetcher, address, max_age
        self._found = ""
        """URL of the discovered Service. It is searched again after a failure."""

    async def read(self) -> Iterable[CardSample]:
        """Return the samples of all families that Prometheus knows."""
        try:
            url = self._address.url or self._found
            if not url:
                listed = self._address.namespaces
                url = self._found = await services.found(self._api, listed)
                if not url:
                    raise SourceError(
                        f"no Service of Prometheus in the namespaces {', '.join(listed)}; set --prometheus-url"
                    )
                log.info("Prometheus found", url=url)
            collectors = [Collector(family, self._max_age) for family in FAMILIES]
            for family, collector in zip(FAMILIES, collectors, strict=True):
                await self._ask(url, families.ages(family), collector.add_age)
                for series in family.series if collector.knows_cards else ():
                    query = families.values(family, series, self._max_age)
                    await self._ask(url, query, functools.partial(collector.add, series))
            return chain.from_iterable(collector.samples() for collector in collectors)
        except (AnswerError, CallError, FetchError, OSError, UnicodeDecodeError) as error:
            self._found = ""
            raise SourceError(str(error)) from error

    async def _ask(self, url: str, query: str, take: Callable[[Mapping[str, str], float], None]) -> None:
        """Pass the labels and the value of each series of an answer to `take`, a few in each turn of the loop."""
        headers = self._authorization() if services.is_secure(url) else {}
        body = await self._fetcher.get(f"{url.rstrip('/')}/api/v1/query", params={"query": query}, headers=headers)
        for number, (labels, value) in enumerate(vector(body)):
            take(labels, value)
            if number % SLICE == 0:
                await asyncio.sleep(0)

    def _authorization(self) -> dict[str, str]:
        token = "" if self._address.token is None else self._address.token.read_text().strip()
        return {"Authorization": f"Bearer {token}"} if token else {}


# --- agents -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agent:
    """Where the agent of a node serves its metrics."""

    node: str
    url: str


class Agents:
    """Reads each agent; each counts for the cards of its own node only."""

    def __init__(
        self, *, api: ApiClient, fetcher: Fetcher, namespace: str, port: int, token_file: Path | None = None
    ) -> None:
        self._api, self._fetcher, self._namespace, self._port = api, fetcher, namespace, port
        self._token_file = token_file
        self._agents: list[Agent] = []
        self._list_at = 0.0
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def read(self) -> list[CardSample]:
        """Return the samples of all agents that answer."""
        now = asyncio.get_running_loop().time()
        if now >= self._list_at:
            try:
                pods, _ = await self._api.list(
                    f"/api/v1/namespaces/{self._namespace}/pods", {"labelSelector": AGENT_LABEL}
                )
            except CallError as error:
                raise SourceError(f"agents: {error}") from error
            self._agents, self._list_at = agents_of(pods, self._port), now + LIST_SECONDS
        agents = self._agents
        headers = self._authorization()
        answers = await asyncio.gather(*(self._read_one(agent, headers) for agent in agents))
        failures = [answer for answer in answers if isinstance(answer, FetchError)]
        if agents and len(failures) == len(agents):
            raise SourceError(f"none of {len(agents)} agents answers: {failures[0]}")
        return [sample for answer in answers if not isinstance(answer, FetchError) for sample in answer]

    def _authorization(self) -> dict[str, str]:
        """Return the header with the token in the file, which may be renewed.

        Raises:
            SourceError: the file cannot be read.
        """
        if self._token_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}
        except OSError as error:
            raise SourceError(f"--agent-metrics-token-file {self._token_file}: {error.strerror}") from error

    async def _read_one(self, agent: Agent, headers: Mapping[str, str]) -> list[CardSample] | FetchError:
        try:
            async with self._turns:
                body = await self._fetcher.get(agent.url, headers=headers, max_bytes=AGENT_BYTES)
        except FetchError as error:
            return error
        return exposition.samples(body.decode(errors="replace"), agent.node, time.time())


def agents_of(pods: Iterable[Object], port: int) -> list[Agent]:
    """Return the agents among the pods of their namespace: running pods that a DaemonSet created."""
    agents: list[Agent] = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        owners = metadata.get("ownerReferences") or ()
        if not any(owner.get("controller") and owner.get("kind") == "DaemonSet" for owner in owners):
            continue
        node, text = (pod.get("spec") or {}).get("nodeName"), status.get("podIP") or ""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        if status.get("phase") == "Running" and node:
            host = f"[{text}]" if isinstance(address, ipaddress.IPv6Address) else text
            agents.append(Agent(node, f"http://{host}:{port}/metrics"))
    return agents[:MAX_AGENTS]
