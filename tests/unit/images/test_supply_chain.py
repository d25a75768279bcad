"""The licences of the packages in the images."""

import re
import runpy
import subprocess
import sys
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def pins(image: str) -> set[str]:
    command = [sys.executable, str(ROOT / "images" / "requirements.py"), image]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^[a-z0-9][\w.-]*==[^\s;]+", text, re.MULTILINE))


@pytest.fixture
def licences(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names of the script."""
    monkeypatch.syspath_prepend(ROOT / "images")
    return runpy.run_path(str(ROOT / "images" / "licences.py"))


def fields(**values: str | list[str]) -> Message:
    message = Message()
    for name, listed in values.items():
        for value in [listed] if isinstance(listed, str) else listed:
            message[name.replace("_", "-")] = value
    return message


def test_each_package_of_the_images_has_an_allowed_licence() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "images" / "licences.py"], capture_output=True, text=True, check=False
    )
    assert (printed.returncode, printed.stderr) == (0, "")
    rows = [row.strip("| ").split(" | ") for row in printed.stdout.splitlines()[2:]]
    assert {f"{name}=={version}" for name, version, _, _ in rows} == pins("operator") | pins("agent")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("(GPL-3.0-only OR AGPL-3.0-only) AND MIT", False),
        ("GPL-3.0-only OR MIT AND ISC", True),
        ("MIT or Apache-2.0", True),
    ],
)
def test_an_expression_is_allowed_if_what_it_requires_is(
    licences: dict[str, Any],
    expression: str,
    expected: bool,
) -> None:
    assert licences["is_allowed"](expression) is expected


@pytest.mark.parametrize("expression", ["", "(MIT", "MIT Apache-2.0", "MIT AND", "MIT,ISC"])
def test_a_text_that_is_no_expression_is_a_problem(licences: dict[str, Any], expression: str) -> None:
    with pytest.raises(licences["LicenceError"]):
        licences["is_allowed"](expression)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (fields(License_Expression="MIT", License="Other"), "MIT"),
        (fields(License="3-Clause BSD License"), "BSD-3-Clause"),
        (fields(License="See LICENSE", Classifier="License :: OSI Approved :: MIT License"), "MIT"),
        (
            fields(
                Classifier=[f"License :: OSI Approved :: {each}" for each in ("MIT License", "Apache Software License")]
            ),
            "Apache-2.0 AND MIT",
        ),
        (fields(Classifier=["License :: OSI Approved :: MIT License", "License :: Free For Home Use"]), ""),
        (fields(License="See LICENSE"), ""),
        (fields(), ""),
    ],
)
def test_the_licence_comes_from_the_metadata(licences: dict[str, Any], metadata: Message, expected: str) -> None:
    assert licences["licence"](metadata) == expected


@pytest.mark.parametrize(
    ("licence", "problem"),
    [("MIT", ""), ("", "unknown"), ("GPL-3.0-only", "not allowed"), ("MIT,", "cannot be read")],
)
def test_an_unknown_or_forbidden_licence_is_a_problem(licences: dict[str, Any], licence: str, problem: str) -> None:
    package = licences["Package"](name="p", version="1", images=("agent",), licence=licence)
    assert problem in package.problem
    assert bool(package.problem) == bool(problem)
