"""The cache of terms that match identities takes a bounded amount of memory."""

import tracemalloc

from berth_api.values.caching import size_of
from berth_api.values.selectors import EVERYTHING
from berth_operator.core.fleet.pods.affinity_index import LABEL_BYTES, MAX_CACHED, ExistingTerms
from berth_operator.core.values.affinity import Identity, Peers, Term

LARGEST_KEY, LARGEST_VALUE = 317, 63
"""Characters that the API server allows in a label."""


def test_no_label_is_larger_than_it_counts() -> None:
    assert size_of(("k" * LARGEST_KEY, "v" * LARGEST_VALUE)) <= LABEL_BYTES


def test_identities_of_many_pods_take_no_more_than_the_cache_may() -> None:
    terms: ExistingTerms[Term] = ExistingTerms(4, lambda term: term)
    term = Term(key="zone", peers=Peers(selector=EVERYTHING, namespaces=("ns",)))
    terms.place(0, [term], 1)
    tracemalloc.start()
    for number in range(1000):
        labels = tuple((f"{place:0300}-{number}", f"{number:060}") for place in range(50))
        assert terms.matching(Identity(namespace="ns", labels=labels), lambda _namespace: {}) == (term,)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < MAX_CACHED
