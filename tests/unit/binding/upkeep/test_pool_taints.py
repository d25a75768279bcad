"""The DeviceTaintRules that keep other schedulers from Berth's pools."""

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from berth_client.errors import ApiError
from berth_operator.binding.upkeep.pool_taints import PoolTaints
from berth_operator.core.claims.objects.slices import PoolID
from berth_operator.core.fleet.claims.store import NO_POOLS, OwnPools

Raw = dict[str, Any]
OWN = OwnPools(drivers=frozenset({"gpu.nvidia.com"}), pools=frozenset({PoolID("dra.net", "node-1")}))
V1, V1BETA2 = (f"/apis/resource.k8s.io/{version}/devicetaintrules" for version in ("v1", "v1beta2"))
LABEL = "berth.dev/own-pool"


class Server:
    """An API server that serves some versions of the rules; all show the same objects."""

    def __init__(self, *served: str) -> None:
        self.served, self.rules, self.calls = served, dict[str, Raw](), list[str]()
        self.installed = True
        self.gone = False
        """Whether somebody else deletes what is about to be deleted."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Raw:
        if "clusterroles" in path:
            if not self.installed:
                raise ApiError(404, "NotFound", "no such role")
            return {"metadata": {"name": path.rpartition("/")[2], "uid": "uid-role"}}
        if path not in self.served:
            raise ApiError(404, "NotFound", "not served")
        key, _, value = (params or {}).get("labelSelector", "").partition("=")
        rules = self.rules.values()
        return {"items": [rule for rule in rules if not key or rule["metadata"].get("labels", {}).get(key) == value]}

    async def create(self, path: str, body: Mapping[str, Any]) -> Raw:
        self.calls.append(f"create {path}")
        name = body["metadata"]["name"]
        if name in self.rules:
            raise ApiError(409, "AlreadyExists", f"{name} exists")
        taint = {**body["spec"]["taint"], "timeAdded": "2026-01-01T00:00:00Z"}
        made = {
            **body,
            "metadata": {**body["metadata"], "uid": f"uid-{name}"},
            "spec": {**body["spec"], "taint": taint},
        }
        self.rules[name] = made
        return made

    async def delete(self, path: str, *, uid: str) -> None:
        self.calls.append(f"delete {path}")
        if self.gone:
            self.rules.pop(path.rpartition("/")[2])
            raise ApiError(404, "NotFound", "gone")
        assert self.rules.pop(path.rpartition("/")[2])["metadata"]["uid"] == uid

    def selectors(self) -> list[Mapping[str, str]]:
        return sorted((rule["spec"]["deviceSelector"] for rule in self.rules.values()), key=str)


class Instance:
    """The keeper of one instance, whose configuration may change."""

    def __init__(self, server: Server, name: str = "berth-system/berth-operator", own: OwnPools = OWN) -> None:
        self.own, self.leads = own, True
        self.keeper = PoolTaints(api=server, instance=name, own=lambda: self.own, leads=lambda: self.leads)


@pytest.mark.parametrize(("served", "path"), [((V1, V1BETA2), V1), ((V1BETA2,), V1BETA2)])
async def test_each_driver_and_pool_has_a_rule_of_the_newest_version(served: tuple[str, ...], path: str) -> None:
    server = Server(*served)
    instance = Instance(server)
    await instance.keeper.keep()
    assert server.calls == [f"create {path}"] * 2
    assert server.selectors() == [{"driver": "dra.net", "pool": "node-1"}, {"driver": "gpu.nvidia.com"}]
    for rule in server.rules.values():
        assert (rule["spec"]["taint"]["key"], rule["spec"]["taint"]["effect"]) == (LABEL, "NoSchedule")
        assert rule["metadata"]["ownerReferences"][0]["uid"] == "uid-role"
        assert rule["apiVersion"] == path.removeprefix("/apis/").removesuffix("/devicetaintrules")
    await instance.keeper.keep()
    assert len(server.calls) == 2


async def test_a_rule_goes_with_its_pool_and_comes_back_if_it_was_changed() -> None:
    server = Server(V1)
    instance = Instance(server)
    await instance.keeper.keep()
    instance.own = OwnPools(drivers=OWN.drivers)
    await instance.keeper.keep()
    assert server.selectors() == [{"driver": "gpu.nvidia.com"}]
    [rule] = server.rules.values()
    rule["spec"]["taint"] = {"key": "other", "effect": "None"}
    await instance.keeper.keep()
    [rule] = server.rules.values()
    assert rule["spec"]["taint"]["key"] == LABEL
    instance.own = NO_POOLS
    await instance.keeper.keep()
    assert not server.rules


async def test_a_rule_that_somebody_deleted_is_made_again() -> None:
    server = Server(V1)
    instance = Instance(server)
    await instance.keeper.keep()
    server.rules.popitem()
    await instance.keeper.keep()
    assert len(server.rules) == 2
    # Changed, and deleted by hand at the moment when it would be replaced.
    server.gone = True
    for rule in server.rules.values():
        rule["spec"]["taint"] = {"key": "other", "effect": "None"}
    await instance.keeper.keep()
    assert [rule["spec"]["taint"]["key"] for rule in server.rules.values()] == [LABEL, LABEL]


async def test_a_rule_without_its_label_is_left_as_long_as_it_is_right() -> None:
    server = Server(V1)
    instance = Instance(server)
    await instance.keeper.keep()
    for rule in server.rules.values():
        rule["metadata"]["labels"] = {}
    server.calls.clear()
    await instance.keeper.keep()
    assert server.calls == []
    for rule in server.rules.values():
        rule["spec"]["taint"] = {"key": "other", "effect": "None"}
    await instance.keeper.keep()
    assert [rule["spec"]["taint"]["key"] for rule in server.rules.values()] == [LABEL, LABEL]


async def test_a_rule_of_somebody_else_with_a_name_of_ours_does_not_stop_the_others() -> None:
    server = Server(V1)
    instance = Instance(server)
    await instance.keeper.keep()
    first, second = sorted(server.rules)
    theirs = {"metadata": {"name": first, "uid": "theirs"}, "spec": {"taint": {"key": "a", "effect": "None"}}}
    server.rules = {first: theirs}
    with capture_logs() as logs:
        await instance.keeper.keep()
        await instance.keeper.keep()
    assert server.rules.keys() == {first, second}
    assert server.rules[first] is theirs
    [line] = logs
    assert line["reason"] == f"DeviceTaintRule {first} is not Berth's: delete it"


async def test_every_driver_has_one_rule_for_all_devices() -> None:
    server = Server(V1)
    await Instance(server, own=OwnPools(drivers=frozenset({"*"}))).keeper.keep()
    assert server.selectors() == [{}]


async def test_instances_leave_the_rules_of_others_alone() -> None:
    server = Server(V1)
    await Instance(server).keeper.keep()
    other = Instance(server, "other/berth-operator", OwnPools(drivers=OWN.drivers))
    await other.keeper.keep()
    assert len(server.rules) == 3
    other.own = NO_POOLS
    await other.keeper.keep()
    assert len(server.rules) == 2


async def test_nothing_is_written_after_the_term() -> None:
    server = Server(V1)
    instance = Instance(server)
    instance.leads = False
    await instance.keeper.keep()
    assert not server.rules


async def test_what_to_do_without_the_api_is_logged_once() -> None:
    instance = Instance(Server())
    with capture_logs() as logs:
        await instance.keeper.keep()
        await instance.keeper.keep()
    [line] = logs
    assert line["log_level"] == "warning"
    assert "feature gate DRADeviceTaintRules" in line["reason"]


async def test_without_the_api_or_the_component_nothing_is_written() -> None:
    server = Server()
    await Instance(server).keeper.keep()
    assert not server.calls
    server = Server(V1)
    server.installed = False
    with pytest.raises(ApiError):
        await Instance(server).keeper.keep()
    assert not server.rules
