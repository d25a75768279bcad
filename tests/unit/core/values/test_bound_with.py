"""The record of the members of a gang that are bound together."""

import pytest

from berth_operator.core.values.bound_with import MAX_LISTED, id_of, parse, records, united

UIDS = [f"00000000-0000-4000-8000-{number:012x}" for number in range(1000)]


def test_each_member_names_all_of_a_gang() -> None:
    first, *_, last = records(UIDS[:3], needed=2, minimum=4)
    assert first == "2/3/4 000000000000 000000000001 000000000002"
    assert parse(first) == parse(last)


def test_the_members_of_a_large_gang_together_name_those_that_wait() -> None:
    made = records(UIDS, needed=1000, minimum=1000)
    assert max(map(len, made)) < 2048
    # Bindings are sent in this order; and one that is refused is named by those before it.
    for bound, waiting in ((made[:300], UIDS[300:]), ([*made[:499], *made[500:]], UIDS[499:500])):
        [record] = united(bound)
        assert record.ids >= {id_of(uid) for uid in waiting[: MAX_LISTED - 1]}
        assert record.is_unfinished({id_of(uid) for uid in waiting}, 1000)
    [record] = united(made)
    assert not record.is_unfinished(set(), 1000)


@pytest.mark.parametrize("text", ["", "2/3", "2/3/4/5 a", "2/3/-4", "2/3/x", "2/3/٤", "2/3/" + 5000 * "4"])
def test_a_text_that_is_no_record_is_ignored(text: str) -> None:
    assert parse(text) is None
    assert united([text, "2/3/4 a"]) == united(["2/3/4 a"])
