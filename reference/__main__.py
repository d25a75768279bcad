"""Write the reference pages: `python -m reference [--check] FOLDER`."""

import argparse
import sys
from pathlib import Path
from typing import Final

from reference import commands, definitions, metrics, migrating, names, settings, words

PAGES: Final = {
    "commands.md": commands.text,
    "metrics.md": metrics.text,
    "names.md": names.text,
    "objects.md": definitions.text,
    "settings.md": settings.text,
    "words.md": words.text,
    **migrating.PAGES,
}


def main() -> int:
    """Write the pages, or with --check report which differ; return 1 if one does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    options = parser.parse_args()
    texts = {options.folder / name: text() for name, text in PAGES.items()}
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            sys.stderr.write(f"{path} differs from the code: run `make generate`\n")
        else:
            path.write_text(texts[path])
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
