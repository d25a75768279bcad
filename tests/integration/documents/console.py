"""Console blocks of documents: what a reader types, and the part of the answer that the page shows."""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

BLOCK: Final = re.compile(r"^(?P<indent> *)```console\n(?P<body>.*?)^ *```", re.MULTILINE | re.DOTALL)
PROMPTS: Final = ("$ ", "# ")
HEREDOC: Final = re.compile(r"<<-?\s*'?(?P<end>\w+)'?")
COMMENT: Final = re.compile(r"\s+# .*")
SECONDS: Final = 300.0
"""What one command may take, on a machine ten times slower than usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a page and the lines that the page shows below it."""

    text: str
    """As the page has it, without the prompt and the comment at the end of the line."""
    shown: tuple[str, ...] = ()


def commands(page: str) -> list[Command]:
    """Return the commands of all console blocks of a page, in order."""
    return [command for block in BLOCK.finditer(page) for command in _of_block(block["body"], len(block["indent"]))]


def _of_block(body: str, indent: int) -> Iterator[Command]:
    lines = [line[indent:] for line in body.splitlines()]
    while lines:
        first = lines.pop(0)
        if not first.startswith(PROMPTS):
            raise ValueError(f"a console block begins with a prompt, not with {first!r}")
        typed = [first[2:]]
        while lines and typed[-1].endswith("\\"):
            typed.append(lines.pop(0))
        if heredoc := HEREDOC.search(typed[-1]):
            while typed[-1] != heredoc["end"]:
                typed.append(lines.pop(0))
        shown = []
        while lines and not lines[0].startswith(PROMPTS):
            shown.append(lines.pop(0))
        typed[-1] = COMMENT.sub("", typed[-1])
        yield Command(text="\n".join(typed), shown=tuple(shown))


def missing(shown: Sequence[str], output: str) -> list[str]:
    """Return the lines of a page that the output lacks, in this order.

    Lines are compared without their spacing, and words with digits (ages, ids, numbers) are equal. `...` stands for any
    lines, and at the end of a line for the rest of it.
    """
    lines = iter(output.splitlines())
    wanted = [line for line in shown if line.strip() not in ("", "...")]
    return [line for line in wanted if not any(_alike(line, actual) for actual in lines)]


def _alike(line: str, actual: str) -> bool:
    shape, words = _shape(line), _shape(actual)
    if shape[-1] == "...":
        return words[: len(shape) - 1] == shape[:-1]
    return words == shape


def _shape(line: str) -> list[str]:
    return ["0" if re.search(r"\d", word) else word for word in line.split()]


class Shell:
    """One bash in which the commands of a page run one after the other, so that variables stay set."""

    def __init__(self, *, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._process.communicate()

    def _end(self) -> None:
        """Kill the shell with all that it started: a command that goes on would keep its output open."""
        with contextlib.suppress(ProcessLookupError):  # it has ended, and so have its commands
            os.killpg(self._process.pid, signal.SIGKILL)

    def run(self, command: str) -> tuple[int, str]:
        """Run a command and return its status and its output."""
        mark = f"end-{secrets.token_hex(8)}"
        assert self._process.stdin is not None
        # A command must not read what the next one is.
        print(f"{{ {command}\n}} < /dev/null; printf '\\n{mark} %s\\n' $?", file=self._process.stdin, flush=True)
        return self._answer(mark)

    def _answer(self, mark: str) -> tuple[int, str]:
        assert self._process.stdout is not None
        output: list[str] = []
        alarm = threading.Timer(SECONDS, self._end)
        alarm.start()
        try:
            for line in self._process.stdout:
                if line.startswith(mark):
                    return int(line.split()[1]), "".join(output).rstrip()
                output.append(line)
        finally:
            alarm.cancel()
        raise AssertionError(f"the shell ended, or the command took {SECONDS:g} s:\n{''.join(output)}")
