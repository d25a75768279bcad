"""The contents of a configuration file, its effect, and the messages for mistakes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_operator.core import filters, scores
from berth_operator.core.decision.policy import ALWAYS, CARD_STRATEGIES, CLAIM_STRATEGIES, NODE_STRATEGIES, Policy
from berth_operator.core.scores.genius import DynamicWeights, GeniusWeights, StaticWeights
from berth_operator.core.values.quota_workload import CheckSettings
from berth_operator.settings import configuration, rendering
from berth_operator.settings.configuration import ConfigurationError

HEAD = "{apiVersion: config.berth.dev/v1alpha1, kind: BerthSchedulerConfiguration, profiles: [%s]}"
PATH = Path("berth.yaml")
ROOT = Path(__file__).parents[2]

SWITCHES = ", ".join(["*", *(each.NAME for each in filters.ORDER if not each.TRAITS.needed)])
SCORES = ", ".join(each.NAME for each in scores.ALL)
CARDS = ", ".join(CARD_STRATEGIES)


def profile(**fields: Any) -> str:
    """Return a file with one profile, in one line."""
    return HEAD % yaml.safe_dump({"schedulerName": "a", **fields}, default_flow_style=True, width=1000).strip()


def aliased(aliases: str) -> str:
    """Return a file with one profile and with aliases of models."""
    return profile().removesuffix("}") + f", modelAliases: {aliases}}}"


def read(text: str) -> Policy:
    """Return the policy of the one profile of a file."""
    return configuration.parse(text.encode(), PATH).policies["a"]


def weights(**fields: Any) -> dict[str, float]:
    return dict(read(profile(**fields)).weights)


def test_a_configuration_as_a_file_is_itself() -> None:
    genius = {"static": {"memory": 3}, "dynamic": {"idleDecoders": 0.5}, "powerPreference": "Draw"}
    gang = {"topologyKeys": ["example.com/rack"], "keepPartial": True}
    plugins = {"filters": {"disabled": ["*"]}, "scores": {"weights": {"card-packing": 2.5, "taints": 0}}}
    fields = {"strategy": {"nodes": "MostAllocated", "cards": "LeastAllocated"}, "subdevices": "never"}
    text = profile(**fields, plugins=plugins, preemption=False, reserveAfterSeconds=60, gang=gang, genius=genius)
    for each in (text, profile(), aliased("{H100: ['*H100*', '*GH200*']}")):
        written = configuration.parse(each.encode(), PATH)
        decoded = json.loads(json.dumps(rendering.document(written)))
        assert replace(configuration.of_document(decoded, "here"), hash=written.hash) == written


# --- effects ----------------------------------------------------------------------------------------------------


def test_a_profile_that_says_nothing_is_the_default() -> None:
    assert read(profile()) == Policy()


def test_each_profile_has_a_policy_of_its_own() -> None:
    profiles = configuration.parse((HEAD % "{schedulerName: a}, {schedulerName: b, preemption: false}").encode(), PATH)
    assert profiles.policies == {"a": Policy(), "b": Policy(preemption=False)}


def test_every_field_reaches_the_policy() -> None:
    text = """
        apiVersion: config.berth.dev/v1alpha1
        kind: BerthSchedulerConfiguration
        profiles:
          - schedulerName: a
            strategy: {nodes: None, cards: LeastAllocated, claims: FirstFit}
            plugins:
              filters: {disabled: [cordon, taints]}
              scores: {disabled: ["*"], weights: {card-packing: 2.5, taints: 0}}
            preemption: false
            reserveAfterSeconds: 60
            subdevices: never
            gang: {topologyKeys: [example.com/rack], keepPartial: true}
            genius:
              static: {weight: 0, memory: 3, multiprocessors: 4, memoryBandwidth: 5, encoders: 6, decoders: 7}
              dynamic:
                {weight: 8, freeMemory: 9, power: 10, idleEncoders: 11, idleDecoders: 12, idleMultiprocessors: 13}
              powerPreference: Draw
    """
    assert read(text) == Policy(
        weights=(("card-packing", 2.5),),
        switched_off=frozenset({"cordon", "taints"}),
        card_strategy="LeastAllocated",
        claim_strategy="FirstFit",
        preemption=False,
        reserve_after=60.0,
        subdevices="never",
        gang_topology_keys=("example.com/rack",),
        gang_keep_partial=True,
        genius=GeniusWeights(
            static=StaticWeights(weight=0, memory=3, multiprocessors=4, memory_bandwidth=5, encoders=6, decoders=7),
            dynamic=DynamicWeights(
                weight=8, free_memory=9, power=10, idle_encoders=11, idle_decoders=12, idle_multiprocessors=13
            ),
            power_preference="Draw",
        ),
    )


def test_aliases_of_models() -> None:
    text = aliased("{Big: ['*80GB', NVIDIA H200], small: [Tesla T4]}")
    aliases = configuration.parse(text.encode(), PATH).model_aliases
    assert aliases == {"big": ("*80GB", "NVIDIA H200"), "small": ("Tesla T4",)}
    assert configuration.parse(profile().encode(), PATH).model_aliases == {}


def test_the_star_switches_off_all_filters_but_the_needed() -> None:
    policy = read(profile(plugins={"filters": {"disabled": ["*"]}}))
    assert policy.switched_off == {each.NAME for each in filters.ORDER if not each.TRAITS.needed}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        pytest.param({}, {"fragmentation": 10, "claim-fragmentation": 10}, id="the default"),
        pytest.param(
            {"nodes": "MostAllocated"},
            {"most-allocated": 1, "balanced-allocation": 1, "fragmentation": 10, "claim-fragmentation": 10},
            id="packed nodes",
        ),
        pytest.param({"cards": "LeastAllocated", "claims": "FirstFit"}, {"card-spreading": 10}, id="spread cards"),
        pytest.param({"nodes": "None", "cards": "None", "claims": "FirstFit"}, {}, id="none"),
    ],
)
def test_strategies_are_weights(strategy: dict[str, str], expected: dict[str, float]) -> None:
    assert weights(strategy=strategy) == {**ALWAYS, **expected}


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        pytest.param(
            {"weights": {"fragmentation": 3, "card-packing": 1}},
            {"fragmentation": 3, "card-packing": 1},
            id="wins over strategy",
        ),
        pytest.param({"disabled": ["fragmentation"]}, {}, id="switched off"),
        pytest.param({"weights": {"fragmentation": 0}}, {}, id="nothing is off too"),
        pytest.param(
            {"disabled": ["fragmentation"], "weights": {"fragmentation": 3}},
            {"fragmentation": 3},
            id="switched off and on again",
        ),
    ],
)
def test_explicit_weights_win(plugins: dict[str, Any], expected: dict[str, float]) -> None:
    assert weights(strategy={"claims": "FirstFit"}, plugins={"scores": plugins}) == {**ALWAYS, **expected}


def test_the_hash_is_that_of_the_content() -> None:
    content = profile().encode()
    first, second = configuration.parse(content, PATH), configuration.parse(content + b" # ", PATH)
    assert len(first.hash) == 64
    assert first.hash == configuration.parse(content, Path("other.yaml")).hash != second.hash


@pytest.mark.parametrize("name", ["default-scheduler", "a.b", "A_b", "a" * 63])
def test_scheduler_names_that_kubernetes_takes(name: str) -> None:
    assert list(configuration.parse((HEAD % f"{{schedulerName: {name}}}").encode(), PATH).policies) == [name]


def test_the_settings_of_the_admission_check() -> None:
    section = "admissionCheck: {pendingSeconds: 5, gatherSeconds: 0, promiseSeconds: 60, fleetGrows: true}}"
    content = f"{profile().removesuffix('}')}, {section}".encode()
    expected = CheckSettings(pending=5.0, gather=0.0, promise=60.0, fleet_grows=True)
    assert configuration.parse(content, PATH).admission_check == expected
    assert configuration.parse(profile().encode(), PATH).admission_check == CheckSettings()


# --- mistakes ---------------------------------------------------------------------------------------------------

ROOT_FIELDS, PROFILE_FIELDS = (
    "admissionCheck, apiVersion, claims, kind, modelAliases, namespaceLimits, profiles",
    "gang, genius, plugins, preemption, reserveAfterSeconds, schedulerName, strategy, subdevices",
)
FILE_HEAD = "apiVersion: config.berth.dev/v1alpha1\nkind: BerthSchedulerConfiguration\n"
IS_NAME = "must be up to 63 letters, digits, dots, dashes and underscores; it begins and ends with a letter or digit"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", f"must be an object with fields of {ROOT_FIELDS}, not null", id="empty"),
        pytest.param("- 1", f"must be an object with fields of {ROOT_FIELDS}, not a list", id="a list"),
        pytest.param(
            "a: [",
            "not YAML: line 1, column 5: expected the node content, but found '<stream end>'",
            id="not YAML",
        ),
        pytest.param(
            "\x00",
            'not YAML: unacceptable character #x0000: special characters are not allowed in "<byte string>", '
            "position 0",
            id="not text",
        ),
        pytest.param(
            "a: 1\na: 2",
            'not YAML: line 2, column 1: "a" is set twice',
            id="a key twice",
        ),
        pytest.param("profiles: [{schedulerName: a}]", "apiVersion: is missing; kind: is missing", id="no version"),
        pytest.param(
            "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, profiles: []}",
            "apiVersion: must be 'config.berth.dev/v1alpha1', not \"kubescheduler.config.k8s.io/v1\"; "
            "kind: must be 'BerthSchedulerConfiguration', not \"KubeSchedulerConfiguration\"",
            id="another kind",
        ),
        pytest.param(FILE_HEAD, "profiles: is missing", id="no profiles"),
        pytest.param(HEAD % "", "profiles: must have at least one", id="empty profiles"),
        pytest.param(
            f"{FILE_HEAD}profiles: [{{schedulerName: a}}]\nadmissionCheck: {{promiseSeconds: 1}}",
            "admissionCheck.promiseSeconds: must be greater than or equal to 10, not 1",
            id="places that are kept for too short a time",
        ),
        pytest.param(FILE_HEAD + "profiles: {a: {}}", "profiles: must be a valid list, not an object", id="no list"),
        pytest.param(FILE_HEAD + "profile: []", f'"profile" is no field; allowed: {ROOT_FIELDS}', id="unknown field"),
        pytest.param(HEAD % "{}", "profiles[0].schedulerName: is missing", id="no name"),
        pytest.param(HEAD % "{schedulerName: a b}", f'profiles[0].schedulerName: {IS_NAME}, not "a b"', id="bad name"),
        pytest.param(
            HEAD % "{schedulerName: 'a,spec.nodeName!='}",
            f'profiles[0].schedulerName: {IS_NAME}, not "a,spec.nodeName!="',
            id="a selector for a name",
        ),
        pytest.param(
            HEAD % f"{{schedulerName: {'a' * 64}}}",
            f'profiles[0].schedulerName: {IS_NAME}, not "{"a" * 64}"',
            id="too long",
        ),
        pytest.param(
            HEAD % "{schedulerName: a}, {schedulerName: b}, {schedulerName: a}",
            'profiles[2].schedulerName: "a" is that of profiles[0]',
            id="a name twice",
        ),
        pytest.param(
            HEAD % "{schedulerName: a}, 7",
            f"profiles[1]: must be an object with fields of {PROFILE_FIELDS}, not 7",
            id="no profile",
        ),
        pytest.param(
            profile(plugin={}),
            f'profiles[0]: "plugin" is no field; allowed: {PROFILE_FIELDS}',
            id="unknown in a profile",
        ),
        pytest.param(
            profile(strategy={"nodes": "Binpack"}),
            'profiles[0].strategy.nodes: "Binpack" is no strategy for nodes; '
            "allowed: None, LeastAllocated, MostAllocated",
            id="strategy for nodes",
        ),
        pytest.param(
            profile(strategy={"cards": "mostallocated"}),
            f'profiles[0].strategy.cards: "mostallocated" is no strategy for cards; allowed: {CARDS}',
            id="strategy for cards",
        ),
        pytest.param(
            profile(subdevices="first"),
            'profiles[0].subdevices: "first" is no rule for subdevices; allowed: last, equal, never',
            id="rule for subdevices",
        ),
        pytest.param(
            profile(strategy={"nodes": None}),
            "profiles[0].strategy.nodes: must be a valid string, not null",
            id="null for a strategy",
        ),
        pytest.param(
            profile(plugins={"filters": {"disabled": ["cordon", "taint"]}}),
            f'profiles[0].plugins.filters.disabled[1]: "taint" is no filter; allowed: {SWITCHES}',
            id="unknown filter",
        ),
        pytest.param(
            profile(plugins={"filters": {"disabled": ["devices"]}}),
            'profiles[0].plugins.filters.disabled[0]: "devices" cannot be switched off, because devices could be '
            f"allocated twice; allowed: {SWITCHES}",
            id="needed filter",
        ),
        pytest.param(
            profile(plugins={"filters": {"disabled": "cordon"}}),
            'profiles[0].plugins.filters.disabled: must be a valid list, not "cordon"',
            id="a name for a list",
        ),
        pytest.param(
            profile(plugins={"filters": {"enabled": []}}),
            'profiles[0].plugins.filters: "enabled" is no field; allowed: disabled',
            id="nothing to switch on",
        ),
        pytest.param(
            profile(plugins={"scores": {"disabled": ["cordon"]}}),
            f'profiles[0].plugins.scores.disabled[0]: "cordon" is no score; allowed: *, {SCORES}',
            id="a filter for a score",
        ),
        pytest.param(
            profile(plugins={"scores": {"weights": {"packing": 1}}}),
            f'profiles[0].plugins.scores.weights.packing: "packing" is no score; allowed: {SCORES}',
            id="unknown score",
        ),
        pytest.param(
            profile(plugins={"scores": {"weights": {"taints": -1}}}),
            "profiles[0].plugins.scores.weights.taints: must be greater than or equal to 0, not -1",
            id="negative weight",
        ),
        pytest.param(
            profile(plugins={"scores": {"weights": {"taints": 1001}}}),
            "profiles[0].plugins.scores.weights.taints: must be less than or equal to 1000, not 1001",
            id="large weight",
        ),
        pytest.param(
            profile(plugins={"scores": {"weights": {"taints": float("nan")}}}),
            "profiles[0].plugins.scores.weights.taints: must be a finite number, not NaN",
            id="no number",
        ),
        pytest.param(
            profile(plugins={"scores": {"weights": {"taints": True}}}),
            "profiles[0].plugins.scores.weights.taints: must be a valid number, not true",
            id="a switch for a weight",
        ),
        pytest.param(
            profile(genius={"dynamic": {"power": -1}}),
            "profiles[0].genius.dynamic.power: must be greater than or equal to 0, not -1",
            id="negative weight of a term",
        ),
        pytest.param(
            profile(genius={"powerPreference": "draw"}),
            'profiles[0].genius.powerPreference: "draw" is no power preference; allowed: Headroom, Draw',
            id="power preference",
        ),
        pytest.param(
            aliased("{a100: []}"),
            "modelAliases.a100: must have at least 1 item after validation, not 0, not a list",
            id="an alias of nothing",
        ),
        pytest.param(
            aliased("{a b: [x]}"),
            f'modelAliases.a b: {IS_NAME}, not "a b"',
            id="no alias",
        ),
        pytest.param(
            profile(preemption="no"),
            'profiles[0].preemption: must be a valid boolean, not "no"',
            id="text for a switch",
        ),
        pytest.param(
            profile(reserveAfterSeconds=-1),
            "profiles[0].reserveAfterSeconds: must be greater than or equal to 0, not -1",
            id="negative seconds",
        ),
        pytest.param(
            profile(gang={"topologyKeys": ["zone", "a/b/c"]}),
            "profiles[0].gang.topologyKeys[1]: must be the key of a label, such as topology.kubernetes.io/zone, not"
            ' "a/b/c"',
            id="no label",
        ),
        pytest.param(
            profile(preemption=1, gang={"keepPartial": 0}),
            "profiles[0].preemption: must be a valid boolean, not 1; profiles[0].gang.keepPartial: must be a valid "
            "boolean, not 0",
            id="two mistakes",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_field_value_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        configuration.parse(text.encode(), PATH)
    assert str(error.value) == f"berth.yaml: {message}"


_ODD = (
    *("a", "*", "~", "-1", ".nan", "1e400", "9" * 400, "2020-01-01", "2020-13-99", "=", "\t", "[]", "{}", "[["),
    *("!!bool x", "!!int x", "!!timestamp x", "!!binary x", "&x [*x]", "&y {a: *y}"),
    *("{2020-01-01: 1}", "{~: 1}", "? [a]", "<<: {a: 1}"),
)
_FIELDS = [
    "schedulerName",
    "strategy",
    "plugins",
    "preemption",
    "subdevices",
    "gang",
    "nodes",
    "filters",
    "scores",
    "weights",
    "a",
]
_VALUES = st.recursive(
    st.sampled_from(_ODD),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
        st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=3).map(
            lambda each: "{" + ", ".join(f"{key}: {value}" for key, value in each.items()) + "}"
        ),
    ),
)


@settings(max_examples=150)
@given(st.one_of(_VALUES.map(lambda each: HEAD % each), _VALUES, st.text()))
def test_any_file_is_used_or_reported_in_one_line(text: str) -> None:
    message = _mistake(text.encode(errors="surrogatepass"))
    assert message == "" or (message.startswith("berth.yaml: ") and "\n" not in message)


def test_a_file_that_is_nested_too_deep_is_reported() -> None:
    assert _mistake(b"[" * 3000).startswith("berth.yaml: not YAML: RecursionError: ")


def _mistake(content: bytes) -> str:
    try:
        configuration.parse(content, PATH)
    except ConfigurationError as error:
        return str(error)
    return ""


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"^{tmp_path}/none: No such file or directory$"):
        configuration.load(tmp_path / "none")
    with pytest.raises(ConfigurationError, match=f"^{tmp_path}: Is a directory$"):
        configuration.load(tmp_path)


# --- the shipped files ------------------------------------------------------------------------------------------


def test_the_shipped_config_map_is_the_default() -> None:
    shipped = yaml.safe_load((ROOT / "manifests/base/configuration.yaml").read_text())
    [(name, text)] = shipped["data"].items()
    assert configuration.parse(text.encode(), Path(name)).policies == {names.SCHEDULER: Policy()}


def test_the_operator_reads_the_shipped_config_map() -> None:
    shipped = yaml.safe_load_all((ROOT / "manifests/base/operator.yaml").read_text())
    operator = next(each for each in shipped if each["kind"] == "Deployment")
    pod = operator["spec"]["template"]["spec"]
    volume = next(each for each in pod["volumes"] if "configMap" in each)
    mount = next(each for each in pod["containers"][0]["volumeMounts"] if each["name"] == volume["name"])
    shipped = yaml.safe_load((ROOT / "manifests/base/configuration.yaml").read_text())
    assert volume == {"name": mount["name"], "configMap": {"name": shipped["metadata"]["name"]}}
    assert "subPath" not in mount
    assert f"--config={mount['mountPath']}/{next(iter(shipped['data']))}" in pod["containers"][0]["args"]


def test_the_example_packs_and_spreads() -> None:
    packed, spread = configuration.load(ROOT / "manifests/configuration/profiles.yaml").policies.values()
    assert {"most-allocated", "card-packing"} <= dict(packed.weights).keys()
    assert {"least-allocated", "card-spreading"} <= dict(spread.weights).keys()
    assert (packed.card_strategy, spread.card_strategy) == ("MostAllocated", "LeastAllocated")


def test_the_documentation_names_everything() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    strategies = [*NODE_STRATEGIES, *CARD_STRATEGIES, *CLAIM_STRATEGIES]
    assert [name for name in (*(each.NAME for each in scores.ALL), *strategies) if f"`{name}`" not in text] == []


# --- the process ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            ["--config", "berth.yaml"],
            f"berth.yaml: must be an object with fields of {ROOT_FIELDS}, not null",
            id="a wrong file",
        ),
        pytest.param(
            ["--config", "berth.yaml", "--no-require-injection"],
            "--require-injection and --config exclude each other: a profile switches off the filter injected",
            id="injection both ways",
        ),
        pytest.param(
            ["--config", "berth.yaml", "--scheduler-names", "a"],
            "--scheduler-names and --config exclude each other: the file names the schedulers",
            id="two sources of names",
        ),
        pytest.param(
            ["--scheduler-names", "a,,b"],
            "--scheduler-names a,,b: must be names of schedulers, separated by commas without spaces, such as berth,",
            id="names that are none",
        ),
        pytest.param(
            ["--node-selector", "team in [a]"],
            '--node-selector team in [a]: cannot read "team in [a]"; allowed are a=b, a!=b, a in (b, c)',
            id="no selector",
        ),
        pytest.param(
            ["--metrics-port=0", "--kubeconfig", "berth.kubeconfig"],
            "berth.kubeconfig: no such kubeconfig",
            id="no kubeconfig",
        ),
        pytest.param(
            ["--metrics-port=0"],
            "no --kubeconfig, and no pod either",
            id="no login",
        ),
    ],
)
def test_a_mistake_ends_the_operator_with_one_plain_line(options: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "berth.yaml").touch()
    command = [sys.executable, "-m", "berth_operator", *options]
    ended = subprocess.run(command, env={}, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"berth-operator: {message}")
    assert ended.stderr.count("\n") == 1
