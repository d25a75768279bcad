"""Caches bounded by bytes."""

import sys
import tracemalloc

import orjson

from berth_api.values.caching import SizedCache, compact, size_of, sized_cache


def test_a_compact_copy_takes_the_memory_that_its_size_says() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [compact(orjson.dumps({"number": number})) for number in range(100)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept[7] == b'{"number":7}'
    assert after - before < 2 * sum(map(sys.getsizeof, kept))


def test_the_least_recently_used_entries_are_dropped() -> None:
    kept: SizedCache[str, bytes] = SizedCache(1000 * 10)
    for name in "abcdefghi":
        kept.put(name, bytes(900))
    assert kept.get("a") is not None
    for name in "jk":
        kept.put(name, bytes(900))
    assert [name for name in "abcdefghijk" if kept.get(name) is not None] == list("adefghijk")
    assert kept.bytes <= 10_000


def test_an_entry_that_would_evict_most_others_is_not_kept() -> None:
    kept: SizedCache[str, bytes] = SizedCache(8000)
    kept.put("small", bytes(100))
    kept.put("large", bytes(4000))
    assert (kept.get("small"), kept.get("large")) == (bytes(100), None)


def test_a_value_replaces_the_one_before_it() -> None:
    kept: SizedCache[str, bytes] = SizedCache(10_000)
    for size in (10, 1000, 20):
        kept.put("a", bytes(size))
    assert (len(kept), kept.bytes, kept.get("a")) == (1, size_of(("a", bytes(20))), bytes(20))


def test_results_are_kept_and_errors_are_not() -> None:
    calls: list[int] = []

    @sized_cache(10_000)
    def half(value: int) -> int:
        calls.append(value)
        if value % 2:
            raise ValueError(value)
        return value // 2

    for value in (2, 2, 3, 3, 4):
        try:
            half(value)
        except ValueError:
            continue
    assert calls == [2, 3, 3, 4]
    half.cache.clear()
    assert half(2) == 1
    assert calls == [2, 3, 3, 4, 2]
