"""Lists in chunks: what a client gets by `limit` and `continue` while objects change, and which tokens are refused."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_client.reflector import EventType
from berth_operator.apis.aggregated import options
from berth_operator.apis.aggregated.chunks import Chunk
from berth_operator.apis.aggregated.continuation import Continuation
from berth_operator.apis.aggregated.options import EXACT
from berth_operator.apis.aggregated.statuses import StatusError
from berth_operator.apis.list_watch.cache import ReflectedCache
from berth_operator.apis.list_watch.kinds import PODS
from tests.unit.list_watch.test_cache import changed, listed, source

NAMES = "abcdefg"
TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@pytest.fixture
def cache() -> ReflectedCache:
    return listed(ReflectedCache(PODS), 10, *(source(name, number) for number, name in enumerate(NAMES, 1)))


def chunk(cache: ReflectedCache, **query: str) -> Chunk:
    return Chunk.of(cache, options.read(PODS, query.pop("namespace", ""), query))


def rest(cache: ReflectedCache, token: str, limit: str = "2") -> list[Chunk]:
    chunks = []
    while token:
        chunks.append(chunk(cache, limit=limit, **{"continue": token}))
        token = chunks[-1].token
    return chunks


def names(*chunks: Chunk) -> str:
    return "".join(entry.key[1] for each in chunks for entry in each.entries)


def test_chunks_are_of_one_version_and_count_what_remains(cache: ReflectedCache) -> None:
    chunks = [first := chunk(cache, limit="3"), *rest(cache, first.token, "3")]
    assert [names(each) for each in chunks] == ["abc", "def", "g"]
    assert [(each.version, each.remaining, bool(each.token)) for each in chunks] == [
        (10, 4, True),
        (10, 1, True),
        (10, None, False),
    ]


@pytest.mark.parametrize("limit", ["0", "", "7", "8", "-3", str(2**62)])
def test_a_list_that_is_not_divided_has_no_token(cache: ReflectedCache, limit: str) -> None:
    whole = chunk(cache, limit=limit)
    assert (names(whole), whole.token, whole.remaining) == (NAMES, "", None)


def test_a_list_of_any_version_is_not_divided(cache: ReflectedCache) -> None:
    assert names(chunk(cache, limit="2", resourceVersion="0")) == NAMES


def test_the_rest_without_a_limit_is_whole(cache: ReflectedCache) -> None:
    first = chunk(cache, limit="2")
    assert names(chunk(cache, **{"continue": first.token})) == "cdefg"


@pytest.mark.parametrize("selector", [{"fieldSelector": "metadata.name!=b"}, {"labelSelector": "!x"}])
def test_what_remains_of_a_selection_is_not_counted(cache: ReflectedCache, selector: dict[str, str]) -> None:
    first = chunk(cache, limit="2", **selector)
    assert (first.remaining, bool(first.token)) == (None, True)
    assert chunk(cache, limit="2", namespace="ns").remaining == 5


def test_a_client_sees_the_version_of_the_first_chunk_whatever_changes(cache: ReflectedCache) -> None:
    first = chunk(cache, limit="3")
    changed(cache, ("DELETED", "e", 11), ("ADDED", "dd", 12), ("MODIFIED", "f", 13), ("ADDED", "e", 14))
    changed(cache, ("DELETED", "a", 15))
    others = rest(cache, first.token)
    assert names(first, *others) == NAMES
    assert {each.version for each in others} == {10}
    assert [entry.version for each in others for entry in each.entries] == [4, 5, 6, 7]
    assert names(chunk(cache)) == "bcdddefg"


EVENTS = st.lists(st.tuples(st.sampled_from("abcdefghij"), st.booleans()), max_size=30)


@given(before=EVENTS, after=EVENTS, limit=st.integers(min_value=1, max_value=4))
def test_chunks_are_the_list_at_their_version(before: Any, after: Any, limit: int) -> None:
    cache = listed(ReflectedCache(PODS), 10)
    version = 10

    def apply(name: str, *, is_there: bool) -> None:
        nonlocal version
        version += 1
        known = cache.get(("ns", name)) is not None
        event_type: EventType = ("MODIFIED" if known else "ADDED") if is_there else "DELETED"
        cache.apply(event_type, source(name, version))

    for name, is_there in before:
        apply(name, is_there=is_there)
    whole = chunk(cache)
    token = (first := chunk(cache, limit=str(limit))).token
    chunks, coming = [first], iter(after)
    while token:
        for name, is_there in [pair for pair in (next(coming, None), next(coming, None)) if pair]:
            apply(name, is_there=is_there)
        chunks += [another := chunk(cache, limit=str(limit), **{"continue": token})]
        token = another.token
    assert [entry for each in chunks for entry in each.entries] == whole.entries
    assert {each.version for each in chunks} == {whole.version}
    assert max(len(each.entries) for each in chunks) <= limit


def test_an_exact_version_is_listed_as_it_was(cache: ReflectedCache) -> None:
    changed(cache, ("DELETED", "a", 11), ("ADDED", "z", 12))
    exact = {"resourceVersion": "11", "resourceVersionMatch": "Exact"}
    assert (names(chunk(cache, **exact)), chunk(cache, **exact).version) == ("bcdefg", 11)
    # The API server takes the version of a list with a limit for an exact one.
    assert names(chunk(cache, limit="9", resourceVersion="10")) == NAMES
    assert names(chunk(cache, limit="9", resourceVersion="10", resourceVersionMatch="NotOlderThan")) == "bcdefgz"


def test_an_expired_token_comes_with_one_for_the_newest_version(cache: ReflectedCache) -> None:
    first = chunk(cache, limit="3")
    listed(cache, 20, source("b", 2), source("d", 18), source("e", 19), source("z", 20))
    with pytest.raises(StatusError) as caught:
        chunk(cache, limit="3", **{"continue": first.token})
    status = caught.value.status
    assert (status["code"], status["reason"], status["message"]) == (410, "Expired", TOO_OLD)
    others = rest(cache, status["metadata"]["continue"])
    assert [names(each) for each in others] == ["de", "z"]
    assert {each.version for each in others} == {20}


def test_an_expired_version_has_no_token(cache: ReflectedCache) -> None:
    with pytest.raises(StatusError, match=r"too old resource version: 9 \(10\)") as caught:
        chunk(cache, resourceVersion="9", resourceVersionMatch="Exact")
    assert caught.value.status["metadata"] == {}


def test_lists_are_sorted_as_the_api_server_sorts(cache: ReflectedCache) -> None:
    for version, namespace in ((11, "ns-2"), (12, "n")):
        obj = source("x", version)
        obj["metadata"]["namespace"] = namespace
        cache.apply("ADDED", obj)
    chunks = [first := chunk(cache, limit="1"), *rest(cache, first.token, "1")]
    # A slash is between the two: `-` comes before it.
    assert [each.entries[0].key for each in chunks] == [
        ("n", "x"),
        ("ns-2", "x"),
        *(("ns", name) for name in NAMES),
    ]


def token(**fields: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(fields)).rstrip(b"=").decode()


VALID = {"v": "meta.k8s.io/v1", "rv": 10, "start": "0/ns/a"}
START_VERSION = "incorrect encoded start resourceVersion (version meta.k8s.io/v1)"


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ("x", "continue key is not valid: "),
        ("!!!!", "continue key is not valid: "),
        ("\u0661\u0661\u0661\u0661", "continue key is not valid: "),
        ("AAAA", "continue key is not valid: "),
        (base64.b64encode(b"[" * 4000).decode(), "continue key is not valid: "),
        (base64.urlsafe_b64encode(b"[]").decode(), "continue key is not valid: not an object"),
        (token(), "continue key is not valid: server does not recognize this encoded version None"),
        (token(**{**VALID, "v": "v2"}), "continue key is not valid: server does not recognize this encoded version v2"),
        (token(**{**VALID, "rv": 0}), START_VERSION),
        (token(**{**VALID, "rv": -2}), START_VERSION),
        (token(**{**VALID, "rv": 2**63}), START_VERSION),
        (token(**{**VALID, "rv": True}), START_VERSION),
        (token(**{**VALID, "rv": "10"}), START_VERSION),
        (token(**{**VALID, "start": ""}), "encoded start key empty (version meta.k8s.io/v1)"),
        (token(**{**VALID, "start": 3}), "encoded start key empty (version meta.k8s.io/v1)"),
        (token(**{**VALID, "start": "ns"}), "continue key is not valid: ns"),
        (token(**{**VALID, "start": "x/ns/a"}), "continue key is not valid: x/ns/a"),
        (token(**{**VALID, "start": "9" * 5000 + "/ns/a"}), "continue key is not valid: 9"),
    ],
)  # fmt: skip
def test_a_damaged_token_is_refused(damaged: str, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        options.read(PODS, "", {"continue": damaged})
    assert (caught.value.code, caught.value.reason) == (400, "BadRequest")
    assert str(caught.value).startswith("invalid continue token: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ({"limit": "many"}, 400, 'limit: "many" is not a number'),
        ({"limit": "1.5"}, 400, 'limit: "1.5" is not a number'),
        ({"limit": "--1"}, 400, 'limit: "--1" is not a number'),
        ({"limit": "x", "resourceVersion": "0"}, 400, 'limit: "x" is not a number'),
        ({"limit": "x", "watch": "true"}, 400, 'limit: "x" is not a number'),
        ({"continue": token(**VALID), "resourceVersion": "10"}, 400,
         "specifying resource version is not allowed when using continue"),
        ({"continue": token(**VALID), "resourceVersion": "10", "resourceVersionMatch": "Exact"}, 422,
         "resourceVersionMatch: forbidden when continue is provided"),
    ],
)  # fmt: skip
def test_what_the_api_server_refuses_is_refused(query: dict[str, str], code: int, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        options.read(PODS, "", query)
    assert (caught.value.code, str(caught.value)) == (code, message)


def test_a_watch_is_not_divided() -> None:
    read = options.read(PODS, "", {"watch": "true", "limit": "2", "continue": "damaged", "resourceVersion": "7"})
    assert (read.continuation, read.version, read.match) == (None, 7, "")


def test_a_token_says_what_list_it_continues() -> None:
    written = Continuation(version=10, after=(3, "ns/a")).encode()
    read = options.read(PODS, "", {"continue": written, "resourceVersion": "0"})
    assert read.continuation == Continuation(version=10, after=(3, "ns/a"))
    assert (read.version, read.match) == (10, EXACT)
