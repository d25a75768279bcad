"""Open a session with the flags of the command line."""

import argparse
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Self

from berth_kubectl.errors import CommandError
from berth_kubectl.reading.session import Session
from berth_kubectl.transport import kubectl, proxy


@contextlib.contextmanager
def session(options: argparse.Namespace, meanwhile: Callable[[], object] = lambda: None) -> Iterator[Session]:
    """Run a proxy; while it starts, find the namespace if it was not named, and call `meanwhile`.

    Raises:
        CommandError: there is no kubectl, or it could not start.
    """
    program = kubectl.find(options.global_flags)
    with _Namespace(program, options) as namespace, proxy.opened(program, meanwhile) as running:
        yield Session(api=running, namespace=namespace.result())


def namespace_of(options: argparse.Namespace) -> str | None:
    """Return the namespace of a command line; empty for all and for none, None for that of the context."""
    if getattr(options, "all", False) or not hasattr(options, "namespace"):
        return ""
    return options.namespace or None


class _Namespace:
    """The namespace of the context, read while the proxy starts."""

    def __init__(self, program: kubectl.Kubectl, options: argparse.Namespace) -> None:
        self._program = program
        named = namespace_of(options)
        self._known, self._needed = named or "", named is None
        self._error: CommandError | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        if self._needed:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._needed:
            self._thread.join()

    def result(self) -> str:
        """Return the namespace; empty for all."""
        if self._needed:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._known

    def _read(self) -> None:
        try:
            self._known = self._program.namespace()
        except CommandError as error:
            self._error = error
