"""Inputs near valid ones: examples with a few changes, so that most of them get past the first check of a parser."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import orjson
import yaml
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Place = tuple[Any, Any]
"""(object or list, its key or index)."""
Draw = Callable[[SearchStrategy[Any]], Any]

TEXTS: Final = (
    *("", " ", "\0", "\n", ",", "/", "=", "..", "*", "a" * 300, "é", "\U0001f9e8", "٣", "true", "null"),
    *("0", "-1", "00", "1e999", "1E-999", "9" * 80, "0x10", "1_000", "NaN", "Infinity", "Ki", "5.5.5", "+-1", "1Ei"),
    *("all", "none", "void", "GPU-0,GPU-1", "GPU-0::-1", "GPU-0::999", "MIG-", "0000:3b:00.0", "node-[0-99999999999]"),
    *("{}", "[]", "[[[[", '{"gpu":[{}]}', "(" * 200, "a{99999999999}", "[z-a]", "!!python/none", "&a [*a]"),
    *(
        "0001-01-01T00:00:00+23:59",
        "9999-99-99",
        "2026-01-01T00:00:00Z",
        "gpu",
        "rdma",
        "kubernetes.io/gpu",
        "nvidia.com/gpu",
    ),
)
"""Texts on which parsers differ."""
NUMBERS: Final = (0, 1, -1, 2, 63, 100, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**64 - 1, -(2**63))
OTHERS: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    1.5,
    1e308,
    -0.0,
    [],
    {},
    [None],
    {"": None},
    [[]],
    [{}],
    {"name": 5},
)

texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=40))
numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(-(2**63), 2**64 - 1))
values: SearchStrategy[Any] = st.one_of(texts, numbers, st.sampled_from(OTHERS).map(copy.deepcopy))
json_values: SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


@st.composite
def near(draw: Draw, *examples: Any, changes: int = 3) -> Any:
    """Draw an example with up to some changes anywhere in it, of any type."""
    root = [copy.deepcopy(draw(st.sampled_from(examples)))]
    for _ in range(draw(st.integers(0, changes))):
        holder, key = draw(st.sampled_from(list(_places(root))))
        _CHANGES[draw(st.sampled_from(sorted(_CHANGES)))](draw, holder, key)
    return root[0]


@st.composite
def typed(draw: Draw, *examples: Any, below: Sequence[str] = (), changes: int = 3) -> Any:
    """Draw an example with up to some changes that keep the types, as the API server checks them.

    Only texts and numbers below keys of these names change; all if there are none.
    """
    root = [copy.deepcopy(draw(st.sampled_from(examples)))]
    leaves = [place for place in _leaves(root, below, inside=not below) if _of_type(place) is not None]
    for _ in range(draw(st.integers(0, changes)) if leaves else 0):
        holder, key = draw(st.sampled_from(leaves))
        fitting = _of_type((holder, key))
        holder[key] = None if fitting is None else draw(fitting)
    return root[0]


def objects(*examples: Any) -> SearchStrategy[dict[str, Any]]:
    """Return `near` without what is no object: the API server sends nothing else."""
    return near(*examples).filter(lambda value: isinstance(value, dict))


def as_json(inputs: SearchStrategy[Any]) -> SearchStrategy[bytes]:
    """Return inputs as JSON, sometimes damaged."""
    return damaged(inputs.map(orjson.dumps))


def as_yaml(inputs: SearchStrategy[Any]) -> SearchStrategy[bytes]:
    """Return inputs as YAML, sometimes damaged."""
    return damaged(inputs.map(lambda value: yaml.safe_dump(value, sort_keys=False).encode()))


@st.composite
def damaged(draw: Draw, inputs: SearchStrategy[bytes]) -> bytes:
    """Draw bytes, of which a piece may be missing, doubled or replaced."""
    content: bytes = draw(inputs)
    if draw(st.integers(0, 3)):
        return content
    start = draw(st.integers(0, len(content)))
    end = draw(st.integers(start, min(len(content), start + 40)))
    piece = draw(
        st.one_of(st.binary(max_size=8), texts.map(lambda text: text.encode()), st.just(content[start:end] * 2))
    )
    return b"".join((content[:start], piece, content[end:]))


def _places(holder: Any) -> Iterator[Place]:
    keys = range(len(holder)) if isinstance(holder, list) else list(holder)
    for key in keys:
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])


def _leaves(holder: Any, below: Sequence[str], *, inside: bool) -> Iterator[Place]:
    for container, key in list(_places(holder)) if inside else []:
        if not isinstance(container[key], dict | list):
            yield container, key
    if not inside:
        for container, key in list(_places(holder)):
            if key in below and isinstance(container[key], dict | list):
                yield from _leaves(container[key], below, inside=True)


def _of_type(place: Place) -> SearchStrategy[Any] | None:
    value = place[0][place[1]]
    if isinstance(value, bool):
        return st.booleans()
    return texts if isinstance(value, str) else st.integers(-(2**31), 2**31 - 1) if isinstance(value, int) else None


# --- changes of one place -------------------------------------------------------------------------------------------


def _replace(draw: Draw, holder: Any, key: Any) -> None:
    holder[key] = draw(values)


def _replace_whole(draw: Draw, holder: Any, key: Any) -> None:
    holder[key] = draw(json_values)


def _remove(_draw: Draw, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder.pop(key, None)
    elif len(holder) > key:
        holder[key] = None


def _repeat(draw: Draw, holder: Any, key: Any) -> None:
    if isinstance(holder, list) and len(holder) > key:
        holder[key:key] = [copy.deepcopy(holder[key])] * draw(st.integers(1, 3))


def _insert(draw: Draw, holder: Any, _key: Any) -> None:
    if isinstance(holder, dict):
        holder[draw(texts)] = draw(values)


def _lengthen(draw: Draw, holder: Any, key: Any) -> None:
    if isinstance(holder, dict) and isinstance(holder.get(key), str):
        holder[key] += draw(texts)


_CHANGES: Final = {
    "insert": _insert,
    "lengthen": _lengthen,
    "remove": _remove,
    "repeat": _repeat,
    "replace": _replace,
    "replace whole": _replace_whole,
}
