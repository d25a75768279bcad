"""The start of the zip application `kubectl-berth`: unpack it once for this user, then run it.

Python cannot load compiled modules from an archive. This file runs as `__main__.py` of the archive, before anything of
Berth can be imported.
"""

import json
import os
import platform
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

NEEDS: Final = "needs.json"
MODULES: Final = "modules"


def needs() -> dict[str, str]:
    """Return the Python and the machine that compiled modules depend on."""
    return {"python": str(sys.implementation.cache_tag), "system": platform.system(), "machine": platform.machine()}


def main() -> None:
    """Run `kubectl berth`."""
    with zipfile.ZipFile(Path(__file__).parent) as archive:
        wanted = json.loads(archive.read(NEEDS))
        content = wanted.pop("content")
        if wanted != needs():
            expected, found = (", ".join(each.values()) for each in (wanted, needs()))
            sys.exit(f"error: this file is for {expected}, and this is {found}; krew's archive needs no Python")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berth"
        folder = cache / f"kubectl-berth-{content}"
        if not folder.is_dir():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as draft:
                archive.extractall(Path(draft, content))
                try:
                    Path(draft, content).rename(folder)
                except OSError:
                    if not folder.is_dir():  # otherwise, another process was faster
                        raise
    sys.path[0] = str(folder / MODULES)
    from berth_kubectl import __main__ as plugin  # noqa: PLC0415 - it is unpacked now

    plugin.main()


if __name__ == "__main__":
    main()
