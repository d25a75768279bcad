"""The linter of Berth's English: `python -m tests.harness.prose [FILE ...]` prints violations in all or some files.

Some words and turns are banned in code and documents. Documents that people write have more rules: for more phrases,
for the beginning and the length of a sentence, and for heads of tables.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).parents[2]
OWN: Final = {Path(__file__), ROOT / "tests" / "unit" / "test_language.py"}
"""What has to name banned words."""
SUFFIXES: Final = {".md", ".py", ".yaml", ".toml"}
GENERATED: Final = "<!-- Generated "
LONGEST: Final = 40
"""The most words of a sentence."""

EVERYWHERE: Final = {
    r"\banew\b": "again",
    r"\bbeside\b": "next to, in addition to",
    r"\bfor ever\b": "forever",
    r"\b(?:be|get|got) rid of\b": "remove",
    r"\b(?:tells?|told)\b": "report, show, record, name",
    r"\bnobody\b": "no pod, no process, no one: name the actor",
    r"\b(?:whoever|whom)\b": "name the actor",
    r"(?:^|[.:;] )Who (?:may|can|cannot|is|has|does|asks|wants)\b[^?]*$": "name the actor",
    r"\bsays? of\b": "reports, records",
    r"\bminds?\b": "considers, depends on",
    r"\b(?:lest|whence|thereof|hitherto|aught|naught)\b": "a modern word",
    r'"""(?:Gives?|Says?)\b': "Return",
}
"""Pattern of a word or turn that is banned in code and documents, and what to write instead."""
IN_DOCUMENTS: Final = {
    r"\bof late\b": "recently",
    r"\b(?:is|are|them) in order\b|\bin order to\b": "healthy, without a fault; or: to",
    r"\bby hand\b": "manually",
    r"\bse(?:e|es|en) to (?:that|it)\b": "ensure, enforce",
    r"(?<!\bwho )(?<!\buser )\bwants\b": "needs, requests",
    r"\bask(?:s|ed|ing)? for\b": "request",
    r"\bth(?:at|ose) of\b": "the noun again",
    r"\bthe same of\b": "the noun again",
    r"\bthe (?:former|latter)(?= (?:is|are|has|have|ones?|two)\b|[.,;:)]|$)": "the noun again",
    r"\bas it is\b(?! \w+(?:ed|en|ing)\b)": "unchanged, or the noun",
    r"\bkeeps? account of\b": "tracks",
    r"\b(?:has|have) (?:a )?findings? for\b": "reports",
    r"\bgives? (?:a|the) reason that\b": "shows why",
    r"\b(?:is|are) by (?!default\b)": "a verb",
}
"""The same for phrases in documents."""
OPENINGS: Final = {
    r"Of (?!course\b)": "subject, verb, object",
    r"As many\b": "subject, verb, object",
    r"(?:By|In|From|With) which\b": "subject, verb, object",
    r"(?:To|For|By|With) whom\b": "subject, verb, object",
}
"""The same for how a sentence begins."""

ANY_EVERYWHERE: Final = re.compile("|".join(EVERYWHERE), re.IGNORECASE)

# Lines stay, so that a finding has its line.
CODE: Final = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
SENTENCES: Final = re.compile(r"(?:^|(?<=[.!?…]\s)|(?<=[.!?…][\"')]\s))(?=\S)")
MARKDOWN: Final = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True, slots=True)
class Finding:
    """What breaks a rule."""

    line: int
    """From 1."""
    wrong: str
    text: str

    def __str__(self) -> str:
        """Return it without its file."""
        return f"{self.line}: {self.wrong} | {' '.join(self.text.split())}"


def findings(path: Path) -> list[Finding]:
    """Return what breaks a rule in a file, by line."""
    text = path.read_text()
    found = list(in_lines(text))
    if path.suffix == ".md" and not text.startswith(GENERATED):
        found += in_document(text)
    return sorted(found, key=lambda finding: finding.line)


def in_lines(text: str) -> Iterator[Finding]:
    """Yield what is banned in code and documents."""
    prose = CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
    for number, line in enumerate(prose.splitlines(), start=1):
        if ANY_EVERYWHERE.search(line):
            yield from _banned(EVERYWHERE, line, number)


def in_document(text: str) -> Iterator[Finding]:
    """Yield what else is wrong in a document."""
    line = 1
    tokens = MARKDOWN.parse(text)
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.map:
            line = token.map[0] + 1
        if token.type != "inline":
            continue
        prose = "".join(_words(token))
        if before is not None and before.type == "th_open" and not prose.strip():
            yield Finding(line, "empty head of a column: write what its cells are", "")
        for sentence in _sentences(prose):
            yield from _in_sentence(sentence, line + prose[: prose.index(sentence)].count("\n"))


def _words(inline: Token) -> Iterator[str]:
    """Yield the text that is read; a span of code counts as one word."""
    for child in inline.children or ():
        match child.type:
            case "text":
                yield child.content
            case "code_inline":
                yield "`…`"
            case "softbreak" | "hardbreak":
                yield "\n"


def _sentences(prose: str) -> list[str]:
    return [sentence.rstrip() for sentence in SENTENCES.split(prose) if sentence.strip()]


def _in_sentence(sentence: str, line: int) -> Iterator[Finding]:
    for pattern, better in OPENINGS.items():
        if opening := re.match(pattern, sentence):
            yield Finding(line, f"begins with {opening[0].strip()!r}: {better}", sentence)
    yield from _banned(IN_DOCUMENTS, sentence, line)
    words = sum(any(map(str.isalnum, word)) or "`" in word for word in sentence.split())
    if words > LONGEST:
        yield Finding(line, f"{words} words in a sentence: at most {LONGEST}", sentence)


def _banned(rules: dict[str, str], text: str, line: int) -> Iterator[Finding]:
    for pattern, better in rules.items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            yield Finding(line + text[: match.start()].count("\n"), f"{match[0].strip()!r}: {better}", text)


def sources() -> Iterator[Path]:
    """Yield the files that are held to the rules."""
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith("."):
            continue
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if (path.suffix in SUFFIXES or path.name == "Makefile") and path not in OWN:
                yield path


def main() -> int:
    """Print the findings; return 1 if there are any."""
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or sources()
    lines = [f"{path.relative_to(ROOT)}:{finding}" for path in chosen for finding in findings(path)]
    sys.stderr.writelines(f"{line}\n" for line in lines)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
