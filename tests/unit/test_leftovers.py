"""A test that leaves something to the next one fails, in a real session of pytest."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import asyncio
import pathlib
import socket
import subprocess
import sys
import pytest

KEPT = []

@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server

def test_what_a_fixture_holds(server):
    pass

def test_a_connection():
    KEPT.append(socket.create_server(("127.0.0.1", 0)))

def test_a_process():
    KEPT.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

async def test_a_task_that_is_about_to_end():
    async def end():
        for _ in range(3):
            await asyncio.sleep(0)
    asyncio.create_task(end())

async def test_a_task():
    KEPT.append(asyncio.create_task(asyncio.sleep(60)))

def test_what_failed_has_one_error():
    KEPT.append(socket.create_server(("127.0.0.1", 0)))
    assert False

def test_the_end():
    KEPT[1].kill()
    for each in KEPT:
        if hasattr(each, "close"):
            each.close()
    KEPT[1].communicate()
"""


MODULE = """
import socket
import pytest

KEPT = []

@pytest.fixture(scope="module")
def world():
    return KEPT

def test_may_leave_a_connection_to_the_next_test_of_its_module(world):
    world.append(socket.create_server(("127.0.0.1", 0)))

def test_that_is_the_last():
    pass
"""


SHARED = """
import subprocess
import sys
import types
import pytest
from devcluster.processes import state
from tests.harness import leftovers

SUPERVISOR = '''import fcntl, os, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print(os.getpid(), file=lock, flush=True)
print(flush=True)
input()'''

@pytest.fixture(scope="session")
def cluster(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    command = [sys.executable, "-c", SUPERVISOR, folder / state.LOCK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        supervisor.stdout.readline()
        api = types.SimpleNamespace(shared=set())
        request.config.stash[leftovers.SHARED] = types.SimpleNamespace(folder=folder, api=api)
        yield
        supervisor.communicate()

def test_that_is_the_first_to_use_the_shared_cluster(request):
    request.getfixturevalue("cluster")
"""


def test_it_names_connections_processes_and_tasks(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(MODULE)
    (tmp_path / "test_shared.py").write_text(SHARED)
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "tests.harness.leftovers"]
    options = ["-q", "-c", os.devnull, f"--rootdir={tmp_path}", *plugins]
    settings = ["-o", "asyncio_mode=auto", "-o", "leftovers_patience=0.5"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *settings, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("ERROR", "FAILED"))]
    assert [(line.split()[0], line.rpartition("::")[2]) for line in errors] == [
        ("FAILED", "test_what_failed_has_one_error"),
        ("ERROR", "test_a_connection"),
        ("ERROR", "test_a_process"),
        ("ERROR", "test_a_task"),
        ("ERROR", "test_that_is_the_last"),
    ], done.stdout
    assert all(f"{what} were left" in done.stdout for what in ("connections", "processes", "tasks"))
