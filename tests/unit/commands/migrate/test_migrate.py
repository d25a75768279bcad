"""Manifests of other systems are answered and converted to Berth's words. Nothing else in them changes."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import resources
from berth_kubectl import __main__ as kubectl_berth
from berth_operator.commands import main as commands
from berth_operator.commands.migrate import live, manifests, running, workloads
from berth_operator.commands.migrate.manifests import Migrated
from berth_operator.commands.migrate.workloads import Goal, MigrationResult
from berth_operator.state.objects import pods
from tests import manifests_of_others as others

Raw = dict[str, Any]
GOLDEN: Final = Path(__file__).parent / "migrated.json"
"""To write it again: `berth-operator migrate -f . -o json` in `tests/manifests_of_others`, formatted by `jq .`."""
FILES: Final = others.files()
POD: Final = """\
# A pod of ours.
apiVersion: v1
kind: Pod
metadata:
  name: p  # the name
spec:
  containers:
    - name: main
      image: "i"   # pinned

      resources:
        limits:
          cpu: 2
          # Each card:
          nvidia.com/gpu: 2        # two cards
          nvidia.com/gpumem: 3000  # MiB of each
          # Cores come next.
          nvidia.com/gpucores: 50
      env: []  # none
"""


def migrated(text: str, **goal: Any) -> Migrated:
    return manifests.migrate("f", text, Goal(**goal))


def outcomes(text: str, **goal: Any) -> list[tuple[str, str]]:
    answers = migrated(text, **goal).answers
    return [
        (
            str(answer.workload.outcome),
            answer.workload.why or "; ".join(answer.workload.lost) or answer.workload.becomes,
        )
        for answer in answers
    ]


QUOTAS: Final = """\
apiVersion: v1
kind: ResourceQuota
metadata: {name: q}
spec: {hard: {requests.nvidia.com/gpu: 1, requests.cpu: 1}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: l}
spec: {limits: [{type: Container, max: {nvidia.com/gpumem: 1}}]}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: of-others}
spec: {hard: {requests.nvidia.com/mig-1g.10gb: 1, pods: 2}}
"""


def test_a_quota_of_a_word_is_said_to_count_nothing_of_what_is_rewritten() -> None:
    (kind, first), (_, second) = outcomes(QUOTAS)
    assert (kind, first.partition(":")[0], second.partition(":")[0]) == (
        "partly",
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
    )
    assert "limit the namespace by namespaceLimits" in first
    assert migrated(QUOTAS).text == QUOTAS


def asked(*arguments: str) -> int:
    return commands.main(["migrate", *arguments])


# --- all manifests --------------------------------------------------------------------------------------------


def test_all_manifests_are_answered_as_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(others.FOLDER)
    assert asked("-f", ".", "-o", "json") == 1
    assert json.loads(capsys.readouterr().out) == json.loads(GOLDEN.read_text())
    assert kubectl_berth.run(["migrate", "-f", ".", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == json.loads(GOLDEN.read_text())


def test_every_manifest_is_in_the_answers() -> None:
    answered = {workload["file"] for workload in json.loads(GOLDEN.read_text())["workloads"]}
    assert answered == {str(file.relative_to(others.FOLDER)) for file in FILES}


def as_it_is(text: str) -> str:
    return text


def as_json(text: str) -> str:
    return "---\n".join(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode() + "\n" for body in bodies(text))


def in_one_line(text: str) -> str:
    return "---\n".join(orjson.dumps(body).decode() + "\n" for body in bodies(text))


def in_braces(text: str) -> str:
    return yaml.safe_dump_all(bodies(text), default_flow_style=True, sort_keys=False, width=60)


def sorted_by_name(text: str) -> str:
    return yaml.safe_dump_all(bodies(text), default_flow_style=None)


def in_quotes(text: str) -> str:
    return yaml.safe_dump_all(bodies(text), sort_keys=False, default_style='"')


def for_another_system(text: str) -> str:
    return text.replace("\n", "\r\n")


def with_letters_of_several_bytes(text: str) -> str:
    return "\ufeff%YAML 1.1\n---\n" + text.replace("metadata:\n", "metadata:  # ö😀\n").replace(
        "\n---\n", "\n...\n---\n"
    )


def in_a_list(text: str) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": bodies(text)}, sort_keys=False)


FORMS: Final = (
    as_it_is,
    as_json,
    in_one_line,
    in_braces,
    sorted_by_name,
    in_quotes,
    for_another_system,
    with_letters_of_several_bytes,
    in_a_list,
)


def bodies(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def pods_of(text: str) -> Iterator[Raw]:
    for body in bodies(text):
        for item in body.get("items", [body]):
            path = workloads.TEMPLATES.get((item["apiVersion"].rpartition("/")[0], item["kind"]))
            if path is not None:
                template = workloads._at(item, path)
                metadata = {"namespace": "default", "name": "p", "uid": "", **template.get("metadata", {})}
                yield {"metadata": metadata, "spec": resources.from_limits(template["spec"])}


def requested(raw: Raw) -> tuple[Any, ...]:
    """Return what the operator reads of devices and gangs; the scheduler of a gang is that of its pods."""
    pending = pods.pending(raw)
    gang = pending.gang and replace(pending.gang, scheduler="")
    return pending.error, pending.request.devices, pending.request.shares, pending.request.model, gang


@pytest.mark.parametrize("file", FILES, ids=others.name)
def test_a_manifest_in_any_form_means_the_same_afterwards_and_is_unchanged_then(file: Path) -> None:
    for form in (as_it_is, FORMS[FILES.index(file) % len(FORMS)]):
        text = form(file.read_text())
        done = migrated(text)
        again = migrated(done.text)
        assert done.problems == ()
        expected = [answer.workload.becomes for answer in migrated(file.read_text()).answers]
        assert [answer.workload.becomes for answer in done.answers] == expected, form
        assert again.text == done.text
        for first, second in zip(done.answers, again.answers, strict=False):
            wanted = (
                MigrationResult.IMPOSSIBLE
                if first.workload.outcome == MigrationResult.IMPOSSIBLE
                else MigrationResult.UNCHANGED
            )
            assert second.workload.outcome == wanted, (form, first, second)
        if all(answer.workload.outcome != MigrationResult.IMPOSSIBLE for answer in done.answers):
            assert [*map(requested, pods_of(done.text))] == [*map(requested, pods_of(text))]
            assert {pod["spec"]["schedulerName"] for pod in pods_of(done.text)} == {"berth-scheduler"}


COMMENTS = st.sampled_from(["", "", "  # at the end", " #"])
LINES = st.sampled_from(["", "", "# above: it\n", "\n"])


@pytest.mark.parametrize("file", FILES, ids=others.name)
@settings(max_examples=3)
@given(data=st.data())
def test_comments_order_and_all_other_lines_are_kept(file: Path, data: st.DataObject) -> None:
    lines = file.read_text().splitlines()
    text = "".join(f"{data.draw(LINES)}{line}{data.draw(COMMENTS)}\n" for line in lines)
    done = migrated(text)
    assert comments(done.text) == comments(text)
    changed = {"annotations:", "labels:", "apiVersion: scheduling", "queue", "schedulerName"}
    words_of_file = {word.split()[-1] for answer in done.answers for word in answer.workload.words}
    lost = {name for answer in done.answers for name in re.findall(r"\.(\w+) has no", "\n".join(answer.workload.lost))}
    outside = without_fields(text.splitlines(), lost | {"minResources"})
    kept = [line for line in outside if not any(word in line for word in changed | words_of_file)]
    rest = iter(done.text.splitlines())
    assert [line for line in kept if "nvidia.com/gpu:" not in line and line not in rest] == []


def without_fields(lines: list[str], names: set[str]) -> Iterator[str]:
    """Leave out the fields of these names and what is in them; comments stay."""
    outside = -1
    for line in lines:
        text = line.lstrip()
        indent = len(line) - len(text)
        if text and not text.startswith("#") and (outside < 0 or indent <= outside):
            outside = indent if text.partition(":")[0] in names else -1
        if outside < 0 or not text or text.startswith("#"):
            yield line


def comments(text: str) -> list[str]:
    return sorted(re.findall(r"(?:^|\s)(#.*)", text))


def test_only_the_words_change() -> None:
    done = migrated(POD)
    assert done.text == POD.replace("spec:\n", "spec:\n  schedulerName: berth-scheduler\n").replace(
        "nvidia.com/gpu: 2 ", "kubernetes.io/gpu.shared: 2 "
    ).replace("nvidia.com/gpumem: 3000 ", "kubernetes.io/gpu-memory: 6000Mi ").replace(
        "nvidia.com/gpucores: 50", "kubernetes.io/gpu-core: 100"
    )
    [answer] = done.answers
    assert (answer.line, answer.workload.becomes) == (2, "2 cards of 3000 MiB and 50 % of the cores each")


ANCHORS = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  template:
    spec:
      containers:
        - name: a
          resources: &cards
            limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}
        - name: b
          resources: *cards
"""


def test_what_an_anchor_shares_changes_once() -> None:
    done = migrated(ANCHORS)
    limits = "{kubernetes.io/gpu.shared: 1, kubernetes.io/gpu-memory: 1000Mi}"
    assert limits in done.text
    assert outcomes(ANCHORS) == [("rewritten", "2 cards of 1000 MiB each")]


def test_what_an_anchor_shares_with_another_place_is_not_changed() -> None:
    text = ANCHORS.replace(
        "&cards\n            limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}", "*cards"
    ).replace("spec:\n  template", "x: &cards {limits: {nvidia.com/gpumem: 1000}}\nspec:\n  template")
    done = migrated(text)
    assert done.text == text
    [(outcome, why)] = outcomes(text)
    assert outcome == "impossible"
    assert why.endswith("write it by hand")


# --- kinds ----------------------------------------------------------------------------------------------------

TEMPLATE = "{spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpumem: 1000}}}]}}"


@pytest.mark.parametrize(
    ("api", "kind", "form"),
    [
        *(("apps/v1", kind, "{template: %s}") for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")),
        ("batch/v1", "Job", "{template: %s}"),
        ("batch/v1", "CronJob", "{jobTemplate: {spec: {template: %s}}}"),
    ],
)
def test_every_kind_of_workload_is_read(api: str, kind: str, form: str) -> None:
    text = f"apiVersion: {api}\nkind: {kind}\nmetadata: {{name: w}}\nspec: {form % TEMPLATE}\n"
    assert outcomes(text) == [("rewritten", "1 card of 1000 MiB")]


def test_a_kind_that_only_its_controller_knows_is_answered() -> None:
    text = (
        f"apiVersion: example.com/v1\nkind: Job\nmetadata: {{name: w}}\nspec: {{tasks: [{{template: {TEMPLATE}}}]}}\n"
    )
    [(outcome, why)] = outcomes(text)
    assert outcome == "impossible"
    assert why.startswith("the kind Job of example.com/v1 is not read; ")
    assert why.endswith(": 1 card of 1000 MiB")


MEMBER = """\
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: ml, annotations: {scheduling.k8s.io/group-name: g}}
spec: {schedulerName: volcano, containers: [{name: c}]}
"""
GROUP = """\
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: g, namespace: ml}
spec: {minMember: 2, minTaskMember: {worker: 2}}
"""


def test_a_member_and_its_group_are_rewritten() -> None:
    assert outcomes(MEMBER) == [("rewritten", "")]
    without = (
        "spec.minTaskMember has no effect; Berth counts all members of a group together: its parts have no minimum of "
        "their own"
    )
    assert outcomes(GROUP) == [("partly", without)]


def test_a_group_without_a_minimum_is_answered() -> None:
    assert outcomes(GROUP.replace("minMember: 2, ", "")) == [("impossible", "spec.minMember: is missing")]


def test_a_word_on_a_controller_is_named_as_lost() -> None:
    minimum = "annotations: {scheduling.volcano.sh/group-min-member: '2'}"
    answer = "write the annotations berth.dev/pod-group and berth.dev/pod-group-min-member on the pods"
    template = "{metadata: {labels: {a: b}}, spec: {schedulerName: volcano, containers: [{name: c}]}}"
    text = f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d, {minimum}}}\nspec: {{template: {template}}}\n"
    word = "annotation scheduling.volcano.sh/group-min-member"
    assert outcomes(text) == [("partly", f"{word} of the Deployment has no effect; {answer}")]
    on_pods = text.replace("labels: {a: b}", minimum)
    assert outcomes(on_pods) == [("impossible", f"{word} is not supported; {answer}")]


SELECTED = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec: {selector: x, template: {spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpumem: 1}}}]}}}
"""
UNKNOWN = """\
apiVersion: example.com/v1
kind: Foo
# nvidia.com/gpumem
spec: {template: {metadata: m, spec: {schedulerName: [volcano], containers: [c, {resources: r}, {name: d}]}}}
"""


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        pytest.param(
            GROUP.replace("{name: g, namespace: ml}", "g"),
            [("impossible", 'metadata: must be an object, not "g"')],
            id="a group's metadata",
        ),
        pytest.param(
            GROUP.replace("{minMember: 2, minTaskMember: {worker: 2}}", "2"),
            [("impossible", "spec: must be an object, not 2")],
            id="a group's spec",
        ),
        pytest.param(SELECTED, [("rewritten", "1 card of 1 MiB")], id="a selector"),
        pytest.param(UNKNOWN, [], id="what looks like a pod"),
        pytest.param(
            UNKNOWN.replace("d}", "d, resources: {limits: {nvidia.com/gpumem: 1}}}"),
            [("impossible", None)],
            id="what looks like a pod with a word",
        ),
        pytest.param(ANCHORS + "null: 1\n2: 3\n", [("rewritten", "2 cards of 1000 MiB each")], id="keys"),
    ],
)
def test_a_document_of_another_form_is_answered(text: str, answers: list[Any]) -> None:
    done = outcomes(text)
    assert [(outcome, answer[1] and why) for (outcome, why), answer in zip(done, answers, strict=True)] == answers


@pytest.mark.parametrize(
    ("spec", "answer"),
    [
        ("schedulerName: mine, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]", []),
        ("containers: [{name: c, env: [{name: A, value: nvidia.com/gpu}]}]", []),
        ("schedulerName: kai-scheduler, containers: [{name: c}]", [("rewritten", "")]),
        (
            "schedulerName: mine, containers: [{name: c, resources: {limits: {nvidia.com/gpumem: 1}}}]",
            [("rewritten", "1 card of 1 MiB")],
        ),
        (
            "schedulerName: other, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]",
            [("unchanged", "1 x nvidia.com/gpu")],
        ),
        (
            "containers: {}  # nvidia.com/gpu",
            [("impossible", "not the form of a Pod: spec.containers: must be a valid list, not an object")],
        ),
    ],
)
def test_pods_that_are_not_of_a_known_system_are_left_alone(spec: str, answer: list[Any]) -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{{spec}}}\n".replace(
        "  # nvidia.com/gpu}", "}  # nvidia.com/gpu"
    )
    assert outcomes(text, scheduler="other") == answer


CLAIMS: Final = "resourceClaims: [{name: nic, resourceClaimTemplateName: nic}]"
CARDS: Final = "containers: [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]"
STAYS: Final = (
    "stays with kube-scheduler, as it has spec.resourceClaims; if all claims are in pools of Berth's, write "
    "spec.schedulerName: berth-scheduler"
)


def test_a_pod_with_claims_stays_with_kube_scheduler() -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{{CLAIMS}, {CARDS}}}\n"
    assert outcomes(text) == [("unchanged", STAYS)]
    assert migrated(text).text == text
    [answer] = migrated(text).answers
    assert answer.workload.scheduler == "default-scheduler"
    ours = text.replace("spec: {", "spec: {schedulerName: berth-scheduler, ")
    assert outcomes(ours) == [("unchanged", "2 x nvidia.com/gpu")]


@pytest.mark.parametrize(
    "spec",
    [
        f"schedulerName: kai-scheduler, {CLAIMS}, {CARDS}",
        f"{CLAIMS}, {CARDS.replace('nvidia.com/gpu: 2', 'nvidia.com/gpu: 2, nvidia.com/gpumem: 3000')}",
    ],
)
def test_a_pod_with_claims_that_cannot_stay_is_not_rewritten(spec: str) -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{{spec}}}\n"
    [(outcome, why)] = outcomes(text)
    assert outcome == "impossible"
    assert why.startswith("spec.resourceClaims: Berth allocates claims only from its own pools; if all claims")
    assert migrated(text).text == text


def test_no_pod_of_a_custom_resource_with_claims_is_rewritten() -> None:
    claiming = yaml.safe_load(f"{{spec: {{{CLAIMS}, {CARDS}}}}}")
    spec = {"headGroupSpec": {"template": WORKER}, "workerGroupSpecs": [{"template": claiming}]}
    text = yaml.safe_dump({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "x"}, "spec": spec})
    assert outcomes(text) == [("unchanged", STAYS)]
    assert migrated(text).text == text


def test_a_pod_that_names_its_node_is_not_rewritten() -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{nodeName: n, {CARDS}}}\n"
    assert outcomes(text) == [
        (
            "impossible",
            (
                "spec.nodeName: n bypasses every scheduler, so a scheduler name has no effect; remove it, and to keep "
                "the node write spec.nodeSelector: {kubernetes.io/hostname: n}"
            ),
        )
    ]
    assert migrated(text).text == text


def test_a_bound_pod_of_the_cluster_is_written_without_its_node() -> None:
    pod = yaml.safe_load(f"{{kind: Pod, metadata: {{name: p}}, spec: {{nodeName: n, {CARDS}}}}}")
    [body] = live.bodies(live.Lists(objects={live.PODS: [pod]}))
    assert body == {**pod, "spec": yaml.safe_load(f"{{{CARDS}}}")}


def test_a_label_by_which_pods_are_selected_is_not_removed() -> None:
    text = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n"
        "  selector: {matchLabels: {runai/queue: q}}\n  template:\n    metadata: {labels: {runai/queue: q}}\n"
        "    spec: {schedulerName: kai-scheduler, containers: [{name: c}]}\n"
    )
    assert outcomes(text) == [
        (
            "impossible",
            "label runai/queue is in spec.selector, which cannot change; create it by another name, without the label",
        )
    ]


# --- files ----------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "1.yaml").write_text(f"{POD}---\nnvidia.com/gpu: [1\nkind: x\n---\n{POD}")
    (tmp_path / "2.yaml").write_text("kind: Pod\nspec:\n  a: nvidia.com/gpu\n  b: {{ .Values.b }}\n")
    (tmp_path / "3.yaml").write_text(POD.replace("3000", '"{{ .Values.memory }}"'))
    (tmp_path / "4.yaml").write_bytes(b"# nvidia.com/gpu\na: \xff\n")
    (tmp_path / "5.txt").write_text(POD)
    (tmp_path / "6.yaml").write_text("kind: [\n")  # has no known word
    assert asked("-f", str(tmp_path), "-f", str(tmp_path / "none.yaml")) == 2
    shown = capsys.readouterr()
    assert [line.rpartition("/")[2] for line in shown.err.splitlines()] == [
        "1.yaml:22:5: not readable: did not find expected ',' or ']'",
        "2.yaml:4:6: not readable: {{: a template, not a manifest; migrate what `helm template` prints",
        "3.yaml:16:31: not readable: {{: a template, not a manifest; migrate what `helm template` prints",
        "4.yaml:2:4: not readable: not UTF-8: invalid start byte",
        "none.yaml: not readable: No such file or directory",
    ]
    *lines, summary = shown.out.splitlines()
    assert [line.partition(": ")[0].rpartition("/")[2] for line in lines] == ["1.yaml:2", "1.yaml:25"]
    assert summary == (
        "2 workload(s) in 6 file(s), 1 of them without a known word: 0 unchanged, 2 rewritten, 0 partly, 0 impossible, "
        "5 not readable"
    )


@pytest.mark.parametrize(
    ("text", "status"),
    [("kind: None\n", 0), (POD, 0), (POD.replace("gpucores: 50", "gpucores: 500"), 1), ("nvidia.com/gpu: [", 2)],
)
def test_the_exit_status_says_whether_something_is_lost(text: str, status: int, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text(text)
    assert asked("-f", str(file)) == status


def test_files_are_written_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = tmp_path / "f.yaml", tmp_path / "o.yaml"
    file.write_text(POD)
    file.chmod(0o640)
    other.write_text("kind: None\n")
    before = other.stat()
    assert asked("-f", str(tmp_path), "--in-place") == 0
    assert "rewritten" in capsys.readouterr().out
    assert (file.read_text(), file.stat().st_mode & 0o777) == (migrated(POD).text, 0o640)
    assert other.stat().st_mtime_ns == before.st_mtime_ns
    assert sorted(tmp_path.iterdir()) == [file, other]
    assert asked("-f", "-", "--in-place") == 2


def test_standard_input_and_output_can_be_piped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{POD}---\nkind: None\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert asked("-f", "-", "-o", "yaml", "-q") == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (migrated(text).text, "")


def test_units_and_the_scheduler_name_can_be_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(POD)
    assert asked("-f", str(file), "--memory-units=nvidia.com/gpumem=1Gi", "--scheduler-name=mine", "-o", "json") == 0
    [answer] = json.loads(capsys.readouterr().out)["workloads"]
    assert (answer["becomes"], answer["schedulerName"]) == ("2 cards of 3072000 MiB and 50 % of the cores each", "mine")
    assert asked("-f", str(file), "--memory-units=x=1Gi") == 2


class Terminal(io.StringIO):
    """Standard error of a person."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("err", "is_shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_progress_is_shown_on_a_terminal(err: io.StringIO, is_shown: object, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(POD)
    out = io.StringIO()
    to = running.Streams(form="", quiet=False, out=out, err=err)
    assert running.of_files([str(tmp_path)], Goal(), to) == 0
    assert ("0/1 files" in err.getvalue()) is is_shown
    assert "\r" not in out.getvalue()


# --- custom resources -------------------------------------------------------------------------------------------


WORKER: Final = {
    "spec": {
        "schedulerName": "volcano",
        "containers": [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 2}}}],
    }
}
HEAD: Final = {"spec": {"containers": [{"name": "head", "image": "i"}]}}
RAY: Final = {"headGroupSpec": {"template": HEAD}, "workerGroupSpecs": [{"template": WORKER}, {"template": WORKER}]}
JOB_SET: Final = {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": WORKER}}}]}


def schedulers(value: Any) -> list[str]:
    """Return the scheduler of each pod template in a document, and of the document itself."""
    if isinstance(value, list):
        return [name for item in value for name in schedulers(item)]
    if not isinstance(value, dict):
        return []
    own = [value.get("schedulerName", "")] if "containers" in value or "schedulerName" in value else []
    return [*own, *(name for item in value.values() for name in schedulers(item))]


@pytest.mark.parametrize(
    ("version", "kind", "spec"),
    [
        ("ray.io/v1", "RayCluster", RAY),
        ("ray.io/v1", "RayJob", {"entrypoint": "x", "rayClusterSpec": RAY}),
        ("ray.io/v1", "RayService", {"rayClusterConfig": RAY}),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"size": 2, "leaderTemplate": HEAD, "workerTemplate": WORKER}},
        ),
        ("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": {"Master": {"template": WORKER}}}),
        (
            "kubeflow.org/v2beta1",
            "MPIJob",
            {"mpiReplicaSpecs": {"Launcher": {"template": HEAD}, "Worker": {"template": WORKER}}},
        ),
        ("kubeflow.org/v1", "Notebook", {"template": WORKER}),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", JOB_SET),
        ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", {"template": {"spec": JOB_SET}}),
        ("batch.volcano.sh/v1alpha1", "Job", {"schedulerName": "volcano", "tasks": [{"template": WORKER}]}),
    ],
)
def test_all_pods_of_a_custom_resource_get_one_scheduler(version: str, kind: str, spec: Raw) -> None:
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    done = migrated(yaml.safe_dump(body))
    [answer] = done.answers
    assert (answer.workload.outcome, answer.workload.becomes) == (MigrationResult.REWRITTEN, "2 x nvidia.com/gpu")
    [written] = bodies(done.text)
    assert set(schedulers(written)) == {"berth-scheduler"}
    assert migrated(done.text).text == done.text


@pytest.mark.parametrize(
    ("version", "kind", "spec", "advice"),
    [
        (
            "serving.kserve.io/v1beta1",
            "InferenceService",
            {"predictor": {"model": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}},
            "write spec.predictor.schedulerName: berth-scheduler",
        ),
        (
            "argoproj.io/v1alpha1",
            "Workflow",
            {"templates": [{"container": {"resources": {"limits": {"nvidia.com/gpumem": 1}}}}]},
            "write spec.schedulerName: berth-scheduler",
        ),
        (
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            {"trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}},
            "rewrite the TrainingRuntime",
        ),
    ],
)
def test_what_has_no_pod_template_is_written_by_hand(version: str, kind: str, spec: Raw, advice: str) -> None:
    text = yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec})
    [(outcome, why)] = outcomes(text)
    assert outcome == "impossible"
    assert advice in why
    assert why.endswith("or leave it unchanged and give its namespace the label berth.dev/routing: devices")
    assert outcomes(yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": {}})) == []


def test_a_template_that_cannot_be_read_is_named_by_its_path() -> None:
    wrong: Raw = {"spec": {"containers": {}}}
    spec = {"headGroupSpec": {"template": WORKER}, "workerGroupSpecs": [{"template": wrong}]}
    body = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "x"}, "spec": spec}
    [(outcome, why)] = outcomes(yaml.safe_dump(body))
    assert outcome == "impossible"
    assert why.startswith("spec.workerGroupSpecs.0.template: spec.containers: must be a valid list")
