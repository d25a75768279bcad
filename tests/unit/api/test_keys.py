"""Keys of namespaced objects."""

from berth_api.values import keys


def test_a_key_has_namespace_and_name() -> None:
    assert keys.join("ns", "p") == "ns/p"
    assert keys.split("ns/p") == ("ns", "p")
    assert keys.of({"metadata": {"namespace": "ns", "name": "p"}}) == "ns/p"
    assert keys.name_of({"metadata": {"name": "p"}}) == "p"
