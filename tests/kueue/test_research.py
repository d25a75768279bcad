"""The needs of teams of a research cluster: Kueue's fair sharing, elastic jobs and topologies, next to Berth."""

from collections.abc import Iterator

import pytest
import yaml

from devcluster import Cluster
from devcluster.additions import kueue
from tests.kueue import conftest
from tests.kueue.team import Team, apply_queues, entry, hold, node_names, release

CARDS = "nvidia.com/gpu"
HUNDREDTHS = "kubernetes.io/gpu"
CARD = {HUNDREDTHS: "100"}
STRATEGIES = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]
RACK = "test.berth.dev/rack"
REQUIRED = {"kueue.x-k8s.io/podset-required-topology": RACK}
KUEUE = "kueue.x-k8s.io/v1beta2"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster with Kueue as docs/kueue.md configures it for a research cluster, and the queues of the example.

    Kueue counts whole cards by their own name, too, for topologies.
    """
    rules = yaml.safe_load(kueue.CONFIGURATION.read_text())["resources"]["transformations"]
    options = {
        "gates": ["ElasticJobsViaWorkloadSlices"],
        "fairSharing": {"preemptionStrategies": STRATEGIES},
        "resources": {"transformations": [each | _retained(each["input"]) for each in rules]},
    }
    with conftest.started(tmp_path_factory.mktemp("research"), **options) as cluster:
        apply_queues(cluster, "fair-sharing")
        yield cluster


def _retained(resource: str) -> dict[str, str]:
    return {"strategy": "Retain"} if resource == CARDS else {}


# --- fair sharing ---------------------------------------------------------------------------------------------------


def test_teams_that_ask_for_everything_hold_cards_by_their_weights(team_a: Team, team_b: Team) -> None:
    """The weights are 3 and 1; the first team has all eight cards when the other one comes."""
    for number in range(8):
        team_a.job(f"job-{number}", CARD)
    team_a.wait_bound(8)
    for number in range(8):
        team_b.job(f"job-{number}", CARD)
    team_b.wait_bound(2)
    team_a.wait_bound(6)


# --- elastic jobs ---------------------------------------------------------------------------------------------------


def test_an_elastic_job_grows_into_all_cards_and_gives_them_back(team_a: Team, team_b: Team) -> None:
    team_a.elastic_job("train", CARD, pods=2)
    first = {pod["metadata"]["uid"] for pod in team_a.wait_bound(2)}
    team_a.update("jobs", "train", {"spec": {"parallelism": 8}})
    # There are places for six more pods, not for eight.
    pods = team_a.wait_bound(8)
    assert first <= {pod["metadata"]["uid"] for pod in pods}
    team_a.update("jobs", "train", {"spec": {"parallelism": 6}})
    team_a.wait_bound(6)
    # Each a card: the two pods that the job's controller chose may have left different nodes.
    team_b.job("other", CARD, pods=2)
    team_b.wait_bound(2)
    assert len(team_a.bound()) == 6


def test_pods_of_an_elastic_job_run_on_while_it_has_no_places_to_grow(running: Cluster, team_a: Team) -> None:
    hold(running, node_names(running)[0], "others", {CARDS: "4"})
    team_a.elastic_job("train", CARD, pods=2)
    first = {pod["metadata"]["uid"] for pod in team_a.wait_bound(2)}
    team_a.update("jobs", "train", {"spec": {"parallelism": 5}})
    team_a.until(lambda: "2 nodes are available: " in entry(team_a, "train").get("message", ""), "the reason")
    assert entry(team_a, "train")["state"] == "Pending"
    assert {pod["metadata"]["uid"] for pod in team_a.bound()} == first
    release(running)
    team_a.wait_bound(5)


# --- topologies -----------------------------------------------------------------------------------------------------


@pytest.fixture
def racks(running: Cluster) -> Iterator[list[str]]:
    """Put each node into a rack of its own, and let the first team's queue know them; yield the nodes."""
    nodes = node_names(running)
    for node in nodes:
        running.api.merge(f"/api/v1/nodes/{node}", {"metadata": {"labels": {RACK: f"rack-of-{node}"}}})
    model = running.api.get(f"/apis/{KUEUE}/resourceflavors/a100")["spec"]["nodeLabels"]
    for kind, fields in (
        ("Topology", {"levels": [{"nodeLabel": RACK}]}),
        ("ResourceFlavor", {"nodeLabels": model, "topologyName": "racks"}),
    ):
        running.api.apply({"apiVersion": KUEUE, "kind": kind, "metadata": {"name": "racks"}, "spec": fields})
    groups = [_group("racks", cpu=64, memory="512Gi", **{CARDS: 8}), _group("a100", **{"quota.berth.dev/gpu": 800})]
    running.api.merge(f"/apis/{KUEUE}/clusterqueues/team-a", {"spec": {"cohortName": None, "resourceGroups": groups}})
    yield nodes
    apply_queues(running, "fair-sharing")
    release(running)


def _group(flavor: str, **quota: object) -> dict[str, object]:
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    return {"coveredResources": list(quota), "flavors": [{"name": flavor, "resources": resources}]}


def test_gangs_in_one_rack_each_get_the_places_that_the_check_promised(
    running: Cluster, racks: list[str], team_a: Team
) -> None:
    hold(running, racks[0], "one", {CARDS: "1"})
    for name, members in (("first", 4), ("second", 3)):
        gang = {"berth.dev/pod-group": name, "berth.dev/pod-group-min-member": str(members)}
        team_a.job(name, {CARDS: "1"}, pods=members, annotations={**REQUIRED, **gang})
        _wait_ready(team_a, name)
    pods = team_a.wait_bound(7)
    assert {pod["spec"]["nodeSelector"][RACK] == f"rack-of-{pod['spec']['nodeName']}" for pod in pods} == {True}
    messages = [entry(team_a, name)["message"] for name in ("first", "second")]
    assert messages == [f"places on {racks[1]} (4 pods)", f"places on {racks[0]} (3 pods)"]


def _wait_ready(team: Team, name: str) -> None:
    team.until(lambda: entry(team, name).get("state") == "Ready", f"places of {name}")


def test_a_rack_that_has_cards_by_sums_alone_is_not_admitted(running: Cluster, racks: list[str], team_a: Team) -> None:
    hold(running, racks[1], "four", {CARDS: "4"})
    for number in range(4):
        hold(running, racks[0], f"share-{number}", {HUNDREDTHS: "60"})
    team_a.job("train", CARD, annotations=REQUIRED)
    message = team_a.until(lambda: str(entry(team_a, "train").get("message", "")), "the reason of the check")
    assert message.startswith("0/2 nodes are available: ")
    assert team_a.pods() == []
