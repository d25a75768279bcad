"""Write the reference pages: `python -m reference [--check] FOLDER`."""

import sys
from pathlib import Path
from typing import Final

from reference import commands, definitions, keys, metrics, migrating, names, settings, visibility, words, writing

PAGES: Final = {
    "commands.md": commands.text,
    "keys.md": keys.text,
    "metrics.md": metrics.text,
    "names.md": names.text,
    "objects.md": definitions.text,
    "settings.md": settings.text,
    "visibility.md": visibility.text,
    "words.md": words.text,
    **migrating.PAGES,
}


def main() -> int:
    """Write the pages, or with --check report which differ; return 1 if one does."""
    parser = writing.parser(__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    return writing.write(
        {options.folder / name: text() for name, text in PAGES.items()}, "the code", check=options.check
    )


if __name__ == "__main__":
    sys.exit(main())
