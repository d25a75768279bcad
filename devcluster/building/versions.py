"""Version numbers, in programs' output about themselves and in go.mod files."""

import re

Version = tuple[int, int, int]


def parse(output: str) -> Version | None:
    """Return the first version number in a program's output, or None."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", output)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def text(version: Version) -> str:
    """Write a version as 1.2.3."""
    return ".".join(map(str, version))


def same_minor(left: Version | None, right: Version) -> bool:
    """Return whether two versions have the same major and minor number."""
    return left is not None and left[:2] == right[:2]


def required(go_mod: str, dependency: str) -> Version:
    """Return the version of a dependency that a go.mod file requires."""
    match = re.search(rf"^(?:require)?\s*{re.escape(dependency)} v(\S+)", go_mod, re.MULTILINE)
    version = parse(match[1]) if match else None
    if version is None:
        raise ValueError(f"go.mod does not require {dependency}")
    return version


def go_directive(go_mod: str) -> Version:
    """Return the Go version that a go.mod file asks for."""
    match = re.search(r"^go (\S+)$", go_mod, re.MULTILINE)
    version = parse(match[1]) if match else None
    if version is None:
        raise ValueError("go.mod has no go directive")
    return version
