"""Write the JSON schema of the configuration file: `python -m berth_operator.settings.schema [--check] FILE`."""

import argparse
import json
import sys
from pathlib import Path

from berth_operator.settings.configuration import File


def text() -> str:
    """Return the text of the schema file."""
    body = File.model_json_schema()
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **body}, indent=2) + "\n"


def main() -> int:
    """Write the schema, or with --check compare it; return 1 if the file differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    options = parser.parse_args()
    if not options.check:
        options.file.write_text(text())
    elif not options.file.exists() or options.file.read_text() != text():
        sys.stderr.write(f"{options.file} differs from its model: run `make generate`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
