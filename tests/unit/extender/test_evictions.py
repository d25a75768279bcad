from berth_operator.apis.extender.evictions import MAX_ERRORS, Evictions


def test_a_pod_waits_a_few_times_after_each_preemption() -> None:
    evictions = Evictions(limit=2)
    for _ in range(2):
        evictions.begin("a", ["n"])
        assert [evictions.wait("a") for _ in range(MAX_ERRORS + 1)] == [True] * MAX_ERRORS + [False]
        assert evictions.nodes("a") == ("n",)


def test_a_pod_that_is_gone_does_not_wait() -> None:
    evictions = Evictions(limit=2)
    evictions.begin("a", ["n"])
    evictions.end("a")
    assert not evictions.wait("a")


def test_the_pods_are_limited() -> None:
    evictions = Evictions(limit=2)
    for uid in "abc":
        evictions.begin(uid, ["n"])
    assert [evictions.wait(uid) for uid in "abc"] == [False, False, True]
