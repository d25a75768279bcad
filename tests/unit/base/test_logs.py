"""All lines of a program have one format, wherever they come from."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, gc, logging, sys, threading, warnings
import structlog
from berth_base import logs

logs.configure(form=sys.argv[1], level=sys.argv[2])
log = structlog.get_logger("berth")
log.debug("detail"); log.info("ours", pod="a"); log.warning("serious")
logging.getLogger("kopf.objects").warning("from kopf: %s", "x")
logging.getLogger("kopf.objects").info("a detail of kopf")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("aiohttp.server").exception("from aiohttp")
warnings.warn("a warning")

async def fail():
    raise RuntimeError("in a task")

async def main():
    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
    gc.collect()

asyncio.run(main())

def in_thread():
    raise RuntimeError("in a thread")

thread = threading.Thread(target=in_thread, name="kopf")
thread.start()
thread.join()
raise RuntimeError("at the end")
"""


def run(form: str, level: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, form, level], capture_output=True, text=True, check=False)


def test_every_line_is_json() -> None:
    ended = run("json", "info")
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert (ended.returncode, ended.stderr) == (1, "")
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    events = [(line["level"], line["event"].partition("\n")[0]) for line in lines]
    assert events[:4] == [
        ("info", "ours"),
        ("warning", "serious"),
        ("warning", "from kopf: x"),
        ("error", "from aiohttp"),
    ]
    assert [level for level, _ in events[4:]] == ["warning", "error", "critical", "critical"]
    assert (lines[2]["logger"], lines[0]["pod"]) == ("kopf.objects", "a")
    causes = [line["exception"].splitlines()[-1] for line in lines if "exception" in line]
    assert causes == [
        "ZeroDivisionError: division by zero",
        "RuntimeError: in a task",
        "RuntimeError: in a thread",
        "RuntimeError: at the end",
    ]


@pytest.mark.parametrize(
    ("level", "first", "count"), [("debug", "event=detail", 9), ("info", "event=ours", 8), ("warning", "serious", 7)]
)
def test_text_has_one_line_for_each_event_of_a_level(level: str, first: str, count: int) -> None:
    lines = run("text", level).stdout.splitlines()
    assert first in lines[0]
    assert (len(lines), all(line.startswith("timestamp=") for line in lines)) == (count, True)
