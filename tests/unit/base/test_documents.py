"""YAML, read with one error for every mistake."""

import pytest
import yaml

from berth_base import documents
from berth_base.documents import DocumentError

BOMB = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)), "b: *a7"]
).encode()


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"", None),
        (b"a: 1", {"a": 1}),
        (b"base: &b {x: 1}\nmerged: {<<: *b, y: 2}\n", {"base": {"x": 1}, "merged": {"x": 1, "y": 2}}),
        (b"- &a [1]\n- *a\n", [[1], [1]]),
    ],
)
def test_a_document_is_read_as_pyyaml_reads_it(content: bytes, value: object) -> None:
    assert documents.read(content) == value == yaml.safe_load(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "line 1, column 5: expected the node content, but found '<stream end>'"),
        (b"\x80", "unacceptable character"),
        (b"a: 2026-99-99", "ValueError: month must be in 1..12"),
        (b"[" * 3000, "RecursionError: "),
        (b"a: 1\n---\nb: 2\n", "2 documents; allowed is one"),
        (b"a: !!python/none", "line 1, column 4: could not determine a constructor"),
        (b"&a [*a]", "line 1, column 1: aliases and merge keys repeat more than 1048576 values"),
        (BOMB, "aliases and merge keys repeat more than 1048576 values"),
    ],
)
def test_a_mistake_is_one_line(content: bytes, message: str) -> None:
    with pytest.raises(DocumentError) as error:
        documents.read(content)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_all_documents_of_a_text_are_read() -> None:
    assert documents.read_all("a: 1\n---\n---\n[b]\n") == [{"a": 1}, None, ["b"]]
    with pytest.raises(DocumentError):
        documents.read_all(BOMB.decode())
