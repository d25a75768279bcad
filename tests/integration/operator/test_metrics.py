"""A real Prometheus scrapes operator and agent: panels have data, alerts fire, and names are kube-scheduler's."""

import json
import re
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from berth_operator.metrics.monitoring import dashboard
from devcluster import Arena, Cluster, waiting
from devcluster.building import programs
from tests.harness import metric_names
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.nvml.fixture import NvmlFixture, a100
from tests.programs.processes import Process
from tests.programs.prometheus import Prometheus

COMPONENTS = Path(__file__).parents[3] / "manifests" / "components"
RULES = COMPONENTS / "monitoring" / "rules.yaml"
NAME = re.compile(r"\b(?:berth|scheduler|rest_client)_[a-z_]+\b")
KUBE_NAMES = re.compile(r"(?:scheduler|rest_client)_")
NOT_HERE = {
    "berth_refused_writes",
    "berth_plugin_failures_total",
    "berth_gpu_xid_errors_total",
    "berth_gpu_pod_info",
    "berth_gpu_metrics_cards",
    "berth_extender_calls_total",
    "berth_extender_call_seconds_bucket",
}
"""Series that do not exist before a failure, or without kubelet or the extender."""
HEALTHY = "berth_gpu_healthy == 0"


class Scene:
    """An operator and a kube-scheduler, each with a pod that is bound and one that fits nowhere."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.operator_port, self.agent_port, self._kube_port = words.free_ports(3)
        self._kube_scheduler(folder)
        [node] = world.arena.nodes()
        machine = NvmlFixture(folder, gpus=[a100(0), a100(1)])
        machine.write()
        serving = {"metrics_port": self.agent_port, "metrics_address": "127.0.0.1"}
        world.processes.node_agent(node, machine, **serving)
        self.operator = world.operator(metrics_port=self.operator_port)
        world.wait_ready(node, "True")
        self._pods()

    def _kube_scheduler(self, folder: Path) -> None:
        self._kube_name = f"{self.world.arena.scheduler_name}-kube"
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.world.arena.cluster.kubeconfig)},
            "profiles": [{"schedulerName": self._kube_name}],
        }
        file = folder / "kube-scheduler.yaml"
        file.write_text(yaml.safe_dump(config))
        serving = [f"--secure-port={self._kube_port}", "--bind-address=127.0.0.1", f"--cert-dir={folder / 'certs'}"]
        program = str(programs.ensure(["kube-scheduler"])["kube-scheduler"])
        command = [program, f"--config={file}", *serving, "--authorization-always-allow-paths=/metrics"]
        process = Process(name="kube-scheduler", command=command, folder=folder, environment={})
        self.world.processes.started.append(process)

    def _pods(self) -> None:
        kube = {"scheduler_name": self._kube_name, "nodeSelector": self.world.arena.labels}
        self.world.pod("bound", {"nvidia.com/gpu": "1"})
        self.world.pod("waits", {"nvidia.com/gpu": "9"})
        self.world.pod("gated", {"nvidia.com/gpu": "1"}, schedulingGates=[{"name": "example.com/later"}])
        self.world.pod("kube-bound", {"cpu": "1"}, **kube)
        self.world.pod("kube-waits", {"cpu": "10000"}, **kube)
        for name in ("bound", "kube-bound"):
            self.world.bound(name)
        for name in ("waits", "kube-waits"):
            self.world.waits(name)

    def of_kube_scheduler(self) -> str:
        """Return what kube-scheduler exposes."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        url = f"https://127.0.0.1:{self._kube_port}/metrics"
        with urllib.request.urlopen(url, timeout=20, context=context) as answer:
            return str(answer.read(), "utf-8")

    def of_operator(self) -> str:
        """Return what the operator exposes."""
        return words.fetch(f"http://127.0.0.1:{self.operator_port}/metrics")


@pytest.fixture(scope="module")
def scene(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    arena = Arena(cluster=cluster, folder=tmp_path_factory.mktemp("arena"))
    arena.open()
    own = World(arena=arena, folder=arena.folder)
    try:
        yield Scene(own, arena.folder)
    finally:
        print(own.processes.tails())  # noqa: T201 - pytest shows it if a test failed
        own.close()
        arena.close()


@pytest.fixture(scope="module")
def prometheus(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(folder=tmp_path_factory.mktemp("prometheus") / "own", rules=[RULES]) as running:
        running.scrape("berth-operator", f"127.0.0.1:{scene.operator_port}")
        running.scrape("berth-agent", f"127.0.0.1:{scene.agent_port}")
        running.until("berth_gpu_sample_timestamp_seconds")
        # A rate needs two samples.
        running.until('count_over_time(scheduler_pending_pods{queue="unschedulable"}[1m]) > 2')
        running.until("count_over_time(scheduler_queue_incoming_pods_total[1m]) > 2")
        yield running


# --- the operator -------------------------------------------------------------------------------------------------


def test_gauges_show_the_state(prometheus: Prometheus, scene: Scene) -> None:
    namespace = scene.world.arena.namespace
    for expression in (
        'sum(berth_fleet_gpus{state="allocated"}) == 1',
        'sum(berth_fleet_gpus{state="free"}) == 1',
        'berth_fleet_fragmentation_ratio{gpus="8"} == 1',
        'scheduler_pending_pods{queue="unschedulable"} == 1',
        'scheduler_pending_pods{queue="gated"} == 1',
        'scheduler_unschedulable_pods{plugin="devices"} == 1',
        f'berth_pending_pods{{namespace="{namespace}", reason="devices"}} == 1',
        'time() - berth_pending_pods_oldest_timestamp_seconds{reason="devices"} < 600',
        'time() - berth_watch_last_event_timestamp_seconds{watch="nodes"} < 120',
        'scheduler_schedule_attempts_total{result="scheduled"} == 1',
        'berth_pod_waiting_duration_seconds_count{gpus="1"} == 1',
        'rest_client_requests_total{job="berth-operator", method="POST", code="201"} >= 1',
        'rest_client_requests_total{job="berth-agent", method="PATCH", code=~"20."} >= 1',
    ):
        prometheus.until(expression)


def test_names_labels_and_buckets_are_those_of_kube_scheduler(scene: Scene) -> None:
    theirs, ours = shape(scene.of_kube_scheduler()), shape(scene.of_operator())
    assert len(ours) > 10
    assert ours == {name: theirs.get(name) for name in ours}


def shape(exposed: str) -> Mapping[str, tuple[str, frozenset[str], frozenset[float]]]:
    """Return for each metric of kube-scheduler that has samples its type, label names and buckets."""
    shapes = {}
    for family in text_string_to_metric_families(exposed):
        samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        if KUBE_NAMES.match(family.name) and samples:
            labels = frozenset(label for sample in samples for label in sample.labels) - {"le"}
            limits = frozenset(float(sample.labels["le"]) for sample in samples if "le" in sample.labels)
            shapes[family.name] = family.type, labels, limits
    return shapes


# --- the dashboard ------------------------------------------------------------------------------------------------


def test_the_dashboard_names_only_what_is_exposed() -> None:
    known = {name for series in metric_names.of_operator().values() for name in series.names}
    known |= metric_names.of_agent()
    text = json.dumps(dashboard.dashboard()) + RULES.read_text()
    assert {name for name in NAME.findall(text) if not name.endswith("_")} - known == set()


def test_every_panel_has_data(prometheus: Prometheus) -> None:
    empty = []
    for title, expression in dashboard.expressions():
        query = expression.replace("$job", ".+").replace("$__rate_interval", "1m")
        result = prometheus.query(query)  # raises if the expression is invalid
        if not result and query != HEALTHY and not set(NAME.findall(query)) & NOT_HERE:
            empty.append(title)
    assert empty == []


# --- the rules ----------------------------------------------------------------------------------------------------


def test_prometheus_evaluates_every_rule(prometheus: Prometheus) -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]

    def evaluated() -> list[Any]:
        loaded = prometheus.get("/api/v1/rules")["data"]["groups"]
        rules = [rule for group in loaded for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else []

    rules = waiting.until(evaluated, what="all rules to be evaluated")
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    assert len(rules) == sum(len(group["rules"]) for group in groups)
    firing = [rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] != "inactive"]
    assert firing == [], "nothing is wrong"
    prometheus.until("berth:gpu_allocation:ratio == 1/2")


ALERTS: list[tuple[str, dict[str, str], dict[str, str]]] = [
    ("BerthHasNoLeader", {"berth_leading": "0x20"}, {"berth_leading": "1x20"}),
    ("BerthHasNoLeader", {}, {'berth_leading{instance="a"}': "0x20", 'berth_leading{instance="b"}': "1x20"}),
    ("BerthLoopStuck", {"berth_state_timestamp_seconds": "60 60x20"}, {"berth_state_timestamp_seconds": "0+60x20"}),
    (
        "BerthWatchStale",
        {'berth_watch_last_event_timestamp_seconds{watch="nodes"}': "60x20"},
        {'berth_watch_last_event_timestamp_seconds{watch="nodes"}': "0+60x20"},
    ),
    (
        "BerthBindingsFenced",
        {'berth_binds_total{outcome="fenced"}': "0x10 1x10"},
        {'berth_binds_total{outcome="fenced"}': "7x20", 'berth_binds_total{outcome="bound"}': "0+1x20"},
    ),
    (
        "BerthApiRequestsFail",
        {
            'rest_client_requests_total{job="b",instance="i",code="<error>"}': "0+20x20",
            'rest_client_requests_total{job="b",instance="i",code="200"}': "0+80x20",
            'berth_leading{job="b",instance="i"}': "1x20",
        },
        {
            'rest_client_requests_total{job="kubelet",instance="i",code="500"}': "0+20x20",
            'rest_client_requests_total{job="b",instance="i",code="200"}': "0+80x20",
            'berth_leading{job="b",instance="i"}': "1x20",
        },
    ),
    (
        # Only the leader's requests count: those of a replica that waits would hide or imitate its failures.
        "BerthApiRequestsFail",
        {
            'rest_client_requests_total{job="b",instance="leads",code="429"}': "0+20x20",
            'rest_client_requests_total{job="b",instance="leads",code="200"}': "0+80x20",
            'rest_client_requests_total{job="b",instance="waits",code="200"}': "0+900x20",
            'berth_leading{job="b",instance="leads"}': "1x20",
            'berth_leading{job="b",instance="waits"}': "0x20",
        },
        {
            'rest_client_requests_total{job="b",instance="leads",code="200"}': "0+80x20",
            'rest_client_requests_total{job="b",instance="waits",code="429"}': "0+20x20",
            'berth_leading{job="b",instance="leads"}': "1x20",
            'berth_leading{job="b",instance="waits"}': "0x20",
        },
    ),
    (
        "BerthWritesRefused",
        {'berth_refused_writes{verb="patch",resource="nodes",code="403",refuser="webhook/x",scope="cluster"}': "1x20"},
        {'berth_refused_writes{verb="patch",resource="pods/status",code="403",refuser="",scope="namespaced"}': "3x20"},
    ),
    (
        "BerthWritesRefused",
        {'berth_refused_writes{verb="patch",resource="pods/status",code="403",refuser="",scope="namespaced"}': "4x20"},
        {'berth_refused_writes{verb="patch",resource="devices.berth.dev",code="403",scope="own"}': "1x8 _x12"},
    ),
    ("BerthConfigurationInvalid", {"berth_configuration_valid": "0x20"}, {"berth_configuration_valid": "0x3 1x17"}),
    (
        "BerthPluginFails",
        {'berth_plugin_failures_total{type="npu"}': "0x10 1x10"},
        {'berth_plugin_failures_total{type="npu"}': "3x20"},
    ),
    (
        "BerthReportsLost",
        {'berth_reports_lost_total{what="event"}': "0x10 1x10"},
        {'berth_reports_lost_total{what="event"}': "3x20"},
    ),
    ("BerthPodsDrift", {"berth_drifted_pods": "2x20"}, {"berth_drifted_pods": "0x8 1x5 0x7"}),
    ("BerthCardsDoubled", {"berth_doubled_cards": "1x20"}, {"berth_doubled_cards": "0x20"}),
    (
        "BerthApiServersDisagree",
        {"berth_earlier_states_total": "0x5 2x15"},
        {"berth_earlier_states_total": "0x5 1x15", "berth_decisions_paused": "0x20"},  # one restore
    ),
    (
        "BerthPodsBlocked",
        {'berth_pending_pods_oldest_timestamp_seconds{namespace="a",reason="taints"}': "-4000x20"},
        {'berth_pending_pods_oldest_timestamp_seconds{namespace="a",reason="devices"}': "-4000x20"},
    ),
    (
        "BerthPodsWaitLong",
        {'berth_pending_pods_oldest_timestamp_seconds{namespace="a",reason="devices"}': "-90000x20"},
        {'berth_pending_pods_oldest_timestamp_seconds{namespace="a",reason="devices"}': "-4000x20"},
    ),
    ("BerthAgentsSilent", {"berth_silent_agents": "3x20"}, {"berth_silent_agents": "0x14 3x6"}),
    (
        "BerthGpuUnhealthy",
        {'berth_gpu_healthy{node="n",UUID="GPU-1",minor="0",model="L4"}': "0x20"},
        {'berth_gpu_healthy{node="n",UUID="GPU-1",minor="0",model="L4"}': "1x20"},
    ),
    (
        "BerthShareExceeded",
        {
            'berth_gpu_pod_share_bytes{node="n",UUID="GPU-1",minor="0",namespace="a",pod="p"}': "40000000000x20",
            'berth_gpu_process_memory_bytes{node="n",UUID="GPU-1",minor="0",namespace="a",pod="p",container="c"}': (
                "30000000000x20"
            ),
            'berth_gpu_process_memory_bytes{node="n",UUID="GPU-1",minor="0",namespace="a",pod="p",container="d"}': (
                "12000000000x20"
            ),
        },
        {
            'berth_gpu_pod_share_bytes{node="n",UUID="GPU-1",minor="0",namespace="a",pod="p"}': "40000000000x20",
            'berth_gpu_process_memory_bytes{node="n",UUID="GPU-1",minor="0",namespace="a",pod="p"}': "41000000000x20",
            'berth_gpu_process_memory_bytes{node="n",UUID="GPU-1",minor="0",namespace="a",pod="q"}': "39000000000x20",
        },
    ),
    (
        "BerthIsolationMissing",
        {'berth_device_condition{node="n",condition="MpsServing"}': "0x20"},
        {
            'berth_device_condition{node="n",condition="HamiCoreInstalled"}': "0x8 1x1 0x4 1x7",
            'berth_device_condition{node="n",condition="DriverLoaded"}': "0x20",
        },
    ),
    (
        "BerthGpuSamplesStale",
        {'berth_gpu_sample_timestamp_seconds{node="n"}': "0+60x5", 'berth_gpu_info{node="n",minor="0"}': "1x20"},
        {'berth_gpu_sample_timestamp_seconds{node="n"}': "0+60x5", 'berth_gpu_info{node="n",minor="0"}': "1x9"},
    ),
    ("BerthLiveMetricsStale", {"berth_gpu_metrics_stale": "1x20"}, {"berth_gpu_metrics_stale": "0x12 1x8"}),
]
"""(alert, series with which it fires after 15 minutes, series with which it does not); a value every minute."""


def test_alerts_fire_when_they_should(promtool: Path, tmp_path: Path) -> None:
    tests = [
        {
            "name": f"{alert} {'fires' if fires else 'is quiet'}",
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'(count(ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0) or vector(0)',
                    "eval_time": "15m",
                    "exp_samples": [{"labels": "{}", "value": fires}],
                }
            ],
        }
        for alert, firing, quiet in ALERTS
        for series, fires in ((firing, 1), (quiet, 0))
    ]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def all_rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_every_alert_is_tested_and_says_what_to_do(promtool: Path) -> None:
    checked = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    alerts = [rule for rule in all_rules() if "alert" in rule]
    assert {rule["alert"] for rule in alerts} == {alert for alert, _, _ in ALERTS}
    assert all(rule["labels"]["severity"] in {"critical", "warning", "info"} for rule in alerts)
    assert all(rule["annotations"]["summary"] for rule in alerts)


def test_a_killed_leader_is_noticed(prometheus: Prometheus, scene: Scene) -> None:
    [no_leader] = [rule["expr"] for rule in all_rules() if rule.get("alert") == "BerthHasNoLeader"]
    assert prometheus.query(no_leader) == []
    scene.operator.kill()
    prometheus.until(no_leader)
