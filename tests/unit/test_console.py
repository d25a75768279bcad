"""Console blocks are parsed as a reader would type them."""

import os
import time
from pathlib import Path

import pytest

from tests.integration.documents.console import Command, Shell, commands, missing

PAGE = """
Text.

```console
$ kubectl get pods  # all of them
NAME   READY
web    1/1
$ kubectl apply \\
    -f web.yaml
$ kubectl apply -f - <<EOF
kind: Pod  # a comment of the manifest
EOF
```

1. A list:

   ```console
   # python -m devcluster up
   ```

```yaml
$ no: command
```
"""


def test_commands_come_in_order_with_what_is_shown() -> None:
    assert commands(PAGE) == [
        Command(text="kubectl get pods", shown=("NAME   READY", "web    1/1")),
        Command(text="kubectl apply \\\n    -f web.yaml"),
        Command(text="kubectl apply -f - <<EOF\nkind: Pod  # a comment of the manifest\nEOF"),
        Command(text="python -m devcluster up"),
    ]


def test_a_block_without_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with a prompt"):
        commands("```console\nkubectl get pods\n```\n")


@pytest.mark.parametrize(
    ("shown", "lacking"),
    [
        (["NAME READY AGE", "web-7 1/1 3s"], []),
        (["NAME   READY   AGE", "...", "db-0 2/2 10m"], []),
        (["NAME READY STATUS"], ["NAME READY STATUS"]),
        (["web-7 1/1 3s Running"], ["web-7 1/1 3s Running"]),
        (["NAME ...", "the ..."], []),
        (["an ..."], ["an ..."]),
        (["db-0 2/2 10m", "NAME READY AGE"], ["NAME READY AGE"]),
    ],
)
def test_output_is_compared_by_words_and_order(shown: list[str], lacking: list[str]) -> None:
    output = "NAME     READY   AGE\nweb-1    1/1     30s\nthe end\ndb-5     1/1     2d\n"
    assert missing(shown, output) == lacking


def test_a_command_that_goes_on_ends_with_the_shell(tmp_path: Path) -> None:
    began = time.monotonic()
    with Shell(folder=tmp_path, environment={"PATH": os.environ["PATH"]}) as shell:
        assert shell.run("sleep 600 &") == (0, "")
    assert time.monotonic() - began < 300


def test_commands_share_one_shell(tmp_path: Path) -> None:
    with Shell(folder=tmp_path, environment={"A": "1", "PATH": os.environ["PATH"]}) as shell:
        assert shell.run("export B=2; cat") == (0, "")
        assert shell.run('echo "$A$B"\necho error >&2') == (0, "12\nerror")
        assert shell.run("false") == (1, "")
