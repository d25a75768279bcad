"""The files of the page: vendored ones are unchanged. In Berth's own, no text of the cluster becomes markup or code."""

import hashlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "kubectl/berth_kubectl/dashboard/page"
VENDOR = PAGE / "vendor"
OURS = sorted(
    path for path in PAGE.rglob("*") if path.suffix in {".js", ".css", ".html"} and VENDOR not in path.parents
)
ROW = re.compile(r"^\| `(?P<name>[^`]+)` .*\| `(?P<sum>[0-9a-f]{64})` \|$", re.MULTILINE)

FORBIDDEN = {
    "writes markup": r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|DOMParser|srcdoc",
    "runs text": r"\beval\(|\bnew Function\b|setTimeout\(\s*[\"'`]|javascript:",
    "prints": r"\bconsole\.",
    "loads from elsewhere": r"https?://(?!www\.w3\.org/2000/svg\b)|@import|url\(",
}
"""What no file of the page does -> pattern."""

IN_HTML = {
    "inline script": r"<script(?![^>]*\bsrc=)",
    "inline style": r"<style|\sstyle=",
    "handler": r"\son[a-z]+=",
}
"""What the page's Content-Security-Policy refuses -> pattern."""


def test_vendored_files_have_the_sums_that_their_readme_names() -> None:
    named = {match["name"]: match["sum"] for match in ROW.finditer((VENDOR / "README.md").read_text())}
    files = [path for path in VENDOR.rglob("*") if path.is_file() and path.name != "README.md"]
    sums = {str(path.relative_to(VENDOR)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert named == sums


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(PAGE)))
def test_no_file_handles_text_as_markup_or_code(path: Path) -> None:
    text = path.read_text()
    assert [what for what, pattern in FORBIDDEN.items() if re.search(pattern, text)] == []


@pytest.mark.parametrize("path", [path for path in OURS if path.suffix == ".html"], ids=lambda path: path.name)
def test_html_keeps_to_the_content_security_policy(path: Path) -> None:
    text = path.read_text()
    assert [what for what, pattern in IN_HTML.items() if re.search(pattern, text)] == []


def test_all_imports_and_assets_exist() -> None:
    missing = []
    for path in OURS:
        text = path.read_text()
        imports = [path.parent / name for name in re.findall(r'from "(\.[^"]+)"', text)]
        assets = (
            [PAGE / name for name in re.findall(r'(?:src|href)="/page/([^"]+)"', text)]
            if path.suffix == ".html"
            else []
        )
        missing += [f"{path.name}: {file}" for file in (*imports, *assets) if not file.is_file()]
    assert missing == []


def test_the_page_preloads_all_modules() -> None:
    """Else the browser finds them one level of imports after the other, which takes half a second."""
    preloaded = re.findall(r'rel="modulepreload" href="/page/([^"]+)"', (PAGE / "index.html").read_text())
    modules = {str(path.relative_to(PAGE)) for path in PAGE.rglob("*.js")}
    assert sorted(preloaded) == sorted(modules - {"script/theme.js", "script/main.js"})
