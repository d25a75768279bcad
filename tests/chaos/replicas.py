"""Two operators, each with its own connection and its own clock. They are started again when they end.

A replica that is started again has a new identity, like a new pod, so its LeaderLease has to expire.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from tests.chaos.clock import Clock
from tests.chaos.live import Live
from tests.programs.processes import Process, Processes
from tests.stand_ins.proxy import FaultProxy

PERIOD: Final = 0.1
"""Seconds between two looks whether a replica has ended."""
STANDING_BY: Final = 6.0
"""Seconds after which a standby has loaded its program and read its lists."""


class Replica:
    """One operator."""

    def __init__(self, *, number: int, proxy: FaultProxy, clock: Clock, kubeconfig: Path) -> None:
        self.number, self.proxy, self.clock, self.kubeconfig = number, proxy, clock, kubeconfig
        self.identity = ""
        self.started_at = 0.0
        self.is_kept = True
        """Whether it is started again when it ends."""
        self.process: Process

    @property
    def is_running(self) -> bool:
        """Return whether its process has not ended."""
        return self.process.exit_code is None


class Replicas:
    """All replicas; a context manager."""

    def __init__(
        self,
        *,
        replicas: Sequence[Replica],
        processes: Processes,
        live: Live,
        flags: Mapping[str, object],
        environment: Mapping[str, str],
    ) -> None:
        self._replicas, self._processes, self._live, self._flags = replicas, processes, live, flags
        self._environment = environment
        self._starts = 0
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper")
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self.exits: Counter[str] = Counter()
        """Exit code -> how often a replica ended with it."""

    def __enter__(self) -> Self:
        # In the thread that keeps them: the kernel ends a process with the thread that started it.
        self._keeper.start()
        self._live.until(lambda: self._error or self._live.holder, what="a leader")
        self.check()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._keeper.join()

    def check(self) -> None:
        """Raise the error that ended the keeping."""
        if self._error is not None:
            raise RuntimeError("the replicas are no longer kept") from self._error

    def leader(self, *, with_standby: bool = False) -> Replica:
        """Wait until a running replica holds the LeaderLease, and the other could take over; return it."""
        leader = self._live.until(lambda: self._holder(with_standby=with_standby), what="a running leader")
        assert leader is not None
        return leader

    def standby(self) -> Replica:
        """Return a replica that does not lead, once it runs."""
        leader = self.leader()
        standby = next(each for each in self._replicas if each is not leader)
        self._live.until(lambda: standby.is_running, what="the standby to run")
        return standby

    @contextlib.contextmanager
    def down(self, *replicas: Replica) -> Iterator[None]:
        """Keep replicas from being started again within the block."""
        for replica in replicas:
            replica.is_kept = False
        try:
            yield
        finally:
            for replica in replicas:
                replica.is_kept = True

    def all(self) -> Sequence[Replica]:
        """Return both."""
        return self._replicas

    def _holder(self, *, with_standby: bool) -> Replica | None:
        stands_by_since = time.monotonic() - (STANDING_BY if with_standby else 0.0)
        if any(not each.is_running or each.started_at > stands_by_since for each in self._replicas if with_standby):
            return None
        return next((each for each in self._replicas if each.identity == self._live.holder and each.is_running), None)

    def _keep(self) -> None:
        try:
            for replica in self._replicas:
                self._start(replica)
            while not self._stop.wait(PERIOD):
                for replica in self._replicas:
                    if not replica.is_running and replica.is_kept:
                        self.exits[str(replica.process.exit_code)] += 1
                        self._start(replica)
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the main thread
            self._error = error
        finally:
            for replica in self._replicas:
                if replica.is_running:
                    replica.process.kill()

    def _start(self, replica: Replica) -> None:
        self._starts += 1
        identity = f"replica-{replica.number}-{self._starts}"
        self._processes.environment = {**replica.clock.environment, **self._environment}
        replica.process = self._processes.operator(
            kubeconfig=replica.kubeconfig, wait=False, identity=identity, **self._flags
        )
        replica.identity, replica.started_at = identity, time.monotonic()
