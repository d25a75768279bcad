"""Change values in the text of a YAML or JSON document, and keep everything else byte for byte.

The parser reports the position of each node. So the file's comments, order, quoting, indentation and unchanged
documents stay, which no YAML writer can promise. The result is read again and compared. So an unforeseen form, for
example an anchor that another place uses, causes an error and never a different manifest.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson
import yaml

_PLAIN: Final = re.compile(r"[A-Za-z][\w./-]*|[1-9]\d*[KMGT]i")
"""Texts that need no quotes..."""
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
"""Texts that match `_PLAIN` and do need quotes, because YAML has values of these names."""
_ALIAS: Final = re.compile(r"\s*:\s*\*[^\s,}\]]+")
_TOPICS: Final = ("mem", "core")
"""What names of amounts have in common that mean alike."""
_COMMENT: Final = re.compile(r"[ \t]*(#[^\n]*)?")

Edit = tuple[int, int, str]
"""(start, end, what stands there instead), in characters."""


class NotWritableError(ValueError):
    """A change cannot be written into this text. The message shows the obstacle."""


def written(text: str, node: yaml.Node, old: Any, new: Any) -> str:
    """Return the text of a document with a value changed from `old` to `new`.

    Raises:
        NotWritableError: the form of the text does not allow it.
    """
    parts, place = [], 0
    for start, end, instead in sorted(set(_Writer(text).changes(node, old, new))):
        if start < place:
            raise NotWritableError("two changes at one place, by an anchor or a merge key")
        parts += [text[place:start], instead]
        place = end
    return "".join([*parts, text[place:]])


class _Writer:
    """Finds the edits of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._newline = "\r\n" if "\r\n" in text else "\n"

    def changes(self, node: yaml.Node, old: Any, new: Any) -> Iterator[Edit]:
        """Yield the edits that change a node's value."""
        if old == new:
            return
        if isinstance(node, yaml.MappingNode) and isinstance(old, Mapping) and isinstance(new, Mapping):
            pairs = {key.value: (key, value) for key, value in node.value}
            if any(name not in pairs for name in old if name not in new or old[name] != new[name]):
                raise NotWritableError("a merge key or an alias has what would change")
            for name in (name for name in pairs if name in new and name in old):
                (key, value), before, after = pairs[name], old[name], new[name]
                if isinstance(after, Mapping) and _is_scalar(value) and after:  # null
                    in_block = self._lines([(name, after)], _column(key))
                    yield (_start(key), _end(value), _flow_pair(name, after, key) if node.flow_style else in_block)
                else:
                    yield from self.changes(value, before, after)
            added = {name: value for name, value in new.items() if name not in old}
            removed = [name for name in pairs if name in old and name not in new]  # a key that is no text is in neither
            for name in [name for name in removed if isinstance(pairs[name][1], yaml.MappingNode) and old[name]]:
                other = next((key for key in added if _is_nested(added[key])), None)
                if other is not None:  # a mapping by another name
                    removed.remove(name)
                    key, value = pairs[name]
                    yield (_start(key), _end(key), _scalar(other, quoted=_is_json(key)))
                    yield from self.changes(value, old[name], added.pop(other))
            replaced = _paired([name for name in removed if _is_scalar(pairs[name][1])], added)
            rest = {name: value for name, value in added.items() if name not in {pair[0] for pair in replaced.values()}}
            write = self._flow_pairs if node.flow_style else self._block_pairs
            yield from write(node, removed, replaced, rest)
        elif isinstance(node, yaml.SequenceNode) and len(old) == len(new) == len(node.value):
            for item, before, after in zip(node.value, old, new, strict=True):
                yield from self.changes(item, before, after)
        else:
            yield (_start(node), _end(node), _flow(new, quoted=_is_json(node)))

    # --- mappings in braces -----------------------------------------------------------------------------------

    def _flow_pairs(
        self, node: yaml.MappingNode, removed: list[str], replaced: Mapping[str, tuple[str, Any]], rest: dict[str, Any]
    ) -> Iterator[Edit]:
        pairs = list(node.value)
        if not pairs:
            yield (_start(node), _end(node), _flow(rest, quoted=_is_json(node)))
            return
        for key, value in pairs:
            if key.value in replaced:
                yield (_start(key), self._end_of(key, value), _flow_pair(*replaced[key.value], key))
        gone = [key.value in removed and key.value not in replaced for key, _ in pairs]
        if rest:
            # Before a pair that stays; each is followed by what separates the first two.
            place = next((number for number, is_gone in enumerate(gone) if not is_gone), 0)
            between = self._text[self._end_of(*pairs[0]) : _start(pairs[1][0])] if len(pairs) > 1 else ", "
            first = pairs[place][0]
            if "#" in between:
                raise NotWritableError("a comment stands between two values in braces")
            start = _start(first)
            yield (start, start, "".join(_flow_pair(name, value, first) + between for name, value in rest.items()))
        # A pair is removed up to the next one; the last ones from the end of the pair before them.
        last = max((number for number, is_gone in enumerate(gone) if not is_gone), default=-1)
        for number in range(last):
            if gone[number]:
                yield (_start(pairs[number][0]), _start(pairs[number + 1][0]), "")
        if last + 1 < len(pairs):
            start = self._end_of(*pairs[last]) if last >= 0 else _start(pairs[0][0])
            yield (start, self._end_of(*pairs[-1]), "")

    # --- mappings by indentation ------------------------------------------------------------------------------

    def _block_pairs(
        self, node: yaml.MappingNode, removed: list[str], replaced: Mapping[str, tuple[str, Any]], rest: dict[str, Any]
    ) -> Iterator[Edit]:
        for key, value in node.value:
            if key.value in replaced:
                name, instead = replaced[key.value]
                added, rest = (rest, {}) if rest and not any(map(_is_nested, rest.values())) else ({}, rest)
                end = self._end_of(key, value)
                has_comment = bool(self._comment(end))  # it stays with what stands in place of its value
                lines = [*added.items(), (name, instead)] if has_comment else [(name, instead), *added.items()]
                yield (_start(key), end, self._lines(lines, _column(key)))
            elif key.value in removed:
                yield from self._removed(key, value)
        if rest:
            kept = [pair for pair in node.value if pair[0].value not in removed or pair[0].value in replaced]
            yield self._added(kept, rest)

    def _added(self, pairs: list[tuple[yaml.Node, yaml.Node]], rest: dict[str, Any]) -> Edit:
        """Return an edit that adds pairs: at the end, or first where the last one is long."""
        if not pairs:
            raise NotWritableError("nothing of the mapping stays")
        column = _column(pairs[0][0])
        lines = self._lines(list(rest.items()), column)
        last = pairs[-1][1]
        is_short = _is_scalar(last) or bool(getattr(last, "flow_style", False)) or all(map(_is_nested, rest.values()))
        end = self._last(*pairs[-1]) if is_short else None
        if end is None:
            start = _start(pairs[0][0])
            return (start, start, f"{lines}{self._newline}{' ' * column}")
        end = self._line_end(end)
        end -= self._text[:end].endswith("\r")
        return (end, end, f"{self._newline}{' ' * column}{lines}")

    def _lines(self, pairs: list[tuple[str, Any]], column: int) -> str:
        written = f"\n{' ' * column}".join(_block_pair(name, value, column) for name, value in pairs)
        return written.replace("\n", self._newline)

    def _removed(self, key: yaml.Node, value: yaml.Node) -> Iterator[Edit]:
        """Yield the edits that remove a pair with its lines; comments stay."""
        is_block = isinstance(value, yaml.MappingNode) and not value.flow_style and value.value
        if is_block and _start(value) > _start(key):
            yield self._without_line(_start(key), self._text.index(":", _end(key)) + 1)
            for pair in value.value:
                yield from self._removed(*pair)
            return
        end = self._last(key, value)
        if end is None:
            raise NotWritableError(f"the end of {key.value} is not known")
        yield self._without_line(_start(key), end)

    def _without_line(self, start: int, end: int) -> Edit:
        line = self._text.rfind("\n", 0, start) + 1
        if self._text[line:start].strip():
            raise NotWritableError(f"{self._text[line:end].strip()} has more on its line")
        if comment := self._comment(end):
            return (start, comment, "")
        return (line, min(self._line_end(end) + 1, len(self._text)), "")

    def _comment(self, end: int) -> int:
        """Return where the comment begins that follows a value on its line; 0 if there is none."""
        comment = _COMMENT.match(self._text, end)
        return comment.start(1) if comment is not None and comment[1] else 0

    def _line_end(self, place: int) -> int:
        end = self._text.find("\n", place)
        return len(self._text) if end < 0 else end

    def _last(self, key: yaml.Node, value: yaml.Node) -> int | None:
        """Return where the text of a pair ends; None if the parser does not show it exactly."""
        if _start(value) < _start(key) or not isinstance(value, yaml.CollectionNode) or value.flow_style:
            is_exact = not (isinstance(value, yaml.ScalarNode) and value.style in ("|", ">"))
            return self._end_of(key, value) if is_exact else None
        if not value.value:
            return None
        last = value.value[-1]
        if isinstance(value, yaml.MappingNode):
            return self._last(*last)
        return self._last(key, last)

    def _end_of(self, key: yaml.Node, value: yaml.Node) -> int:
        """Return where a value ends: an alias has the place of its anchor."""
        if _start(value) < _start(key):
            alias = _ALIAS.match(self._text, _end(key))
            if alias is None:
                raise NotWritableError(f"an alias at {key.value}")
            return alias.end()
        return _end(value)


# --- nodes ----------------------------------------------------------------------------------------------------


def _start(node: yaml.Node) -> int:
    return int(node.start_mark.index)


def _end(node: yaml.Node) -> int:
    return int(node.end_mark.index)


def _column(node: yaml.Node) -> int:
    return int(node.start_mark.column)


def _is_scalar(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _is_json(node: yaml.Node) -> bool:
    """Return whether the keys in braces have quotes."""
    first = node.value[0][0] if isinstance(node, yaml.MappingNode) and node.value else node
    return isinstance(first, yaml.ScalarNode) and first.style == '"'


def _paired(removed: list[str], added: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return which added value replaces which removed value, so that comments next to them stay true if possible."""
    paired: dict[str, tuple[str, Any]] = {}
    left = dict(added)
    for topic in _TOPICS:
        for name in removed:
            alike = next((candidate for candidate in left if topic in candidate), None)
            if alike is not None and topic in name and name not in paired:
                paired[name] = (alike, left.pop(alike))
    others = [name for name in removed if name not in paired]
    return {**paired, **dict(zip(others, left.items(), strict=False))}


# --- values as text -------------------------------------------------------------------------------------------


def _scalar(value: Any, *, quoted: bool) -> str:
    text = str(value)
    if not isinstance(value, str) or (not quoted and _PLAIN.fullmatch(text) and text.lower() not in _WORDS):
        return text
    if '"' in text and "'" not in text and text.isprintable() and not quoted:
        return f"'{text}'"
    return orjson.dumps(text).decode()


def _flow(value: Any, *, quoted: bool) -> str:
    if not isinstance(value, Mapping):
        return _scalar(value, quoted=quoted)
    pairs = ", ".join(f"{_scalar(name, quoted=quoted)}: {_flow(part, quoted=quoted)}" for name, part in value.items())
    return f"{{{pairs}}}"


def _flow_pair(name: str, value: Any, key: yaml.Node) -> str:
    quoted = isinstance(key, yaml.ScalarNode) and key.style == '"'
    return f"{_scalar(name, quoted=quoted)}: {_flow(value, quoted=quoted)}"


def _block_pair(name: str, value: Any, column: int) -> str:
    key = _scalar(name, quoted=False)
    if not _is_nested(value):
        return f"{key}: {_flow(value, quoted=False)}"
    inner = column + 2
    lines = (f"\n{' ' * inner}{_block_pair(key, part, inner)}" for key, part in value.items())
    return f"{key}:{''.join(lines)}"
