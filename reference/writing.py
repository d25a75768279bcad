"""Write generated files, or with --check report which files differ."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a generator's arguments."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    return made


def write(texts: Mapping[Path, str], source: str, *, check: bool) -> int:
    """Write the files that differ from their source, or with `check` only report them; return 1 if any was reported."""
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            sys.stderr.write(f"{path} differs from {source}: run `make generate`\n")
        else:
            path.write_text(texts[path])
    return 1 if check and stale else 0
