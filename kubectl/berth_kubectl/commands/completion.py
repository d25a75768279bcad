"""`kubectl berth completion install`: completion of verbs, flags and names through kubectl's own completion."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from berth_kubectl.errors import ANSWERED, CommandError

EXAMPLES: Final = """\
  kubectl berth completion install           # writes kubectl_complete-berth into a folder of PATH
  kubectl berth completion install --folder ~/bin
"""
NAME: Final = "kubectl_complete-berth"
PLUGIN: Final = "kubectl-berth"
SCRIPT: Final = """\
#!/bin/sh
# kubectl's completion calls this for `kubectl berth`; written by `kubectl berth completion install`.
exec kubectl-berth __complete "$@"
"""
ENABLED: Final = "kubectl's own completion has to be enabled in the shell: `source <(kubectl completion bash)`"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("action", choices=("install",), help="write the program that kubectl's completion calls")
    parser.add_argument(
        "--folder", default="", metavar="FOLDER", help="folder to write to (default: a folder on PATH in your home)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the script."""
    if not options.folder and (there := shutil.which(NAME)):
        sys.stdout.write(f"{there} is installed already\n{ENABLED}\n")
        return ANSWERED
    places = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    folder = Path(options.folder).expanduser() if options.folder else chosen(places, Path.home())
    path = folder / NAME
    try:
        path.write_text(SCRIPT)
        path.chmod(0o755)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}; --folder names another folder of PATH") from error
    sys.stdout.write(f"{path} written\n{ENABLED}\n")
    return ANSWERED


def chosen(path: Sequence[Path], home: Path) -> Path:
    """Return the folder of PATH to write into: that of the plug-in if it is the user's, else another of theirs.

    Raises:
        CommandError: no folder of PATH is the user's.
    """
    own = [folder for folder in path if folder.is_relative_to(home) and os.access(folder, os.W_OK)]
    holding = [folder for folder in own if (folder / PLUGIN).exists()]
    if not own:
        raise CommandError("no folder of PATH in your home can be written; name one with --folder")
    return (holding or own)[0]
