"""`kubectl berth dashboard`: a live view of the fleet in the browser, with the rights of the user."""

import argparse
import gc
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Mapping, MutableMapping
from functools import partial
from importlib import metadata
from typing import Any, Final
from urllib.parse import urlsplit

from berth_kubectl.arguments import namespace
from berth_kubectl.commands import doctor
from berth_kubectl.dashboard.dashboard_server import Server
from berth_kubectl.dashboard.health import now
from berth_kubectl.dashboard.relay import Relay
from berth_kubectl.dashboard.supervision import supervise
from berth_kubectl.errors import ANSWERED
from berth_kubectl.transport import kubectl, proxy

EXAMPLES: Final = """\
  kubectl berth dashboard                    # prints an address and opens it
  kubectl berth dashboard --no-browser --port 8001
  ssh -L 8001:127.0.0.1:8001 HOST kubectl berth dashboard --no-browser --port 8001
"""
LOWEST_PORT: Final = 1024
HIGHEST_PORT: Final = 65535
DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables of which one is set where a browser can be opened; a browser in the terminal runs no scripts."""

LIBRARIES: Final = "LD_LIBRARY_PATH"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--port", type=_port, default=0, metavar="PORT", help="port on 127.0.0.1 (default: a free port)"
    )
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="only print the address")
    namespace(parser)
    doctor.installation(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    gc.enable()  # other commands are short
    program, relay, stop = kubectl.find(options.global_flags), Relay(), threading.Event()

    def diagnose() -> dict[str, Any]:
        return doctor.read(relay.proxy, options).body

    shown = described(program.configuration(), options)
    context = {**shown, "version": metadata.version("berth-operator"), "started": now()}
    server = Server(options.port, context=context, diagnose=diagnose, relay=relay)

    def started() -> None:
        """Print the address, and open it; from now on signals end the command in order."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        if options.browser and sys.stdout.isatty() and can_open(sys.platform, os.environ):
            restore_library_path(os.environ)
            # Some browsers return only when they are closed.
            threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()

    with server.serving():
        supervise(partial(proxy.opened, program), relay, started=started, wait=stop.wait)
    return ANSWERED


def can_open(platform: str, environment: Mapping[str, str]) -> bool:
    """Return whether there is a browser with windows."""
    return platform != "linux" or any(environment.get(name) for name in DISPLAYS)


def restore_library_path(environment: MutableMapping[str, str]) -> None:
    """Undo what the program of krew's archive sets for itself: the browser has libraries of its own."""
    if getattr(sys, "frozen", False):
        environment.pop(LIBRARIES, None)
        if original := environment.get(f"{LIBRARIES}_ORIG"):
            environment[LIBRARIES] = original


def described(configuration: Mapping[str, Any], options: argparse.Namespace) -> dict[str, str]:
    """Return what the page shows of kubectl's configuration: context, server, namespace; flags take precedence."""
    name = options.context or configuration.get("current-context") or ""
    context = _entry(configuration, "context", name)
    cluster = _entry(configuration, "cluster", options.cluster or context.get("cluster") or "")
    return {
        "context": str(name),
        "server": without_credentials(str(options.server or cluster.get("server") or "")),
        "namespace": str(options.namespace or context.get("namespace") or "default"),
    }


def without_credentials(address: str) -> str:
    """Return an address without user and password."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _entry(configuration: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """Return a context or cluster; empty if there is none of that name."""
    entries = configuration.get(f"{kind}s") or ()
    return next((entry.get(kind) or {} for entry in entries if entry.get("name") == name), {})


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdecimal() else 0
    if not LOWEST_PORT <= port <= HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed are {LOWEST_PORT} to {HIGHEST_PORT}")
    return port
