"""Berth's own small programs in Go, built once per version of their sources. `programs/` shows what each does."""

from pathlib import Path
from typing import Final

from devcluster.building import cache, golang, steps, versions

SOURCES: Final = Path(__file__).parent / "programs"


def ensure() -> Path:
    """Return the folder that holds the programs, each under its folder's name."""
    files = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".go", ".mod"))
    target = cache.root() / "binaries" / f"real-node-{cache.fingerprint(files)}"
    return cache.once(target, _build)


def _build(target: Path) -> None:
    target.mkdir()
    go = golang.command(at_least=versions.go_directive((SOURCES / "go.mod").read_text()))
    with steps.shown("building the small programs of a real node") as step:
        for folder in sorted(path for path in SOURCES.iterdir() if path.is_dir()):
            with step(folder.name):
                package, program = f"./{folder.name}", target / folder.name
                golang.build(go=go, module=SOURCES, package=package, ldflags="-s -w", target=program)
