"""The output of `queue`, `top` and `explain`, and the output formats."""

import argparse
import io
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from berth_api.objects.visibility import PodExplanation, QueuedPod
from berth_kubectl import __main__ as program
from berth_kubectl import arguments
from berth_kubectl.commands import connecting, explain, explaining, queue, top
from berth_kubectl.errors import CommandError
from berth_kubectl.printing import amounts, colours, tables
from berth_kubectl.printing.output import Output
from berth_kubectl.printing.report import Column, Report
from tests.objects.kubectl_objects import GI, card, fleet_node, holder, part

NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
BUSY = {"utilization": 0.8, "memoryUsed": 40 * GI, "power": 350}
IDLE = {"utilization": 0, "memoryUsed": 20 * GI, "power": 60}


def queued(name: str, position: int, **fields: Any) -> QueuedPod:
    row: Any = {
        "metadata": {"name": name, "namespace": "team", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "position": position,
        "state": "active",
        "priority": 0,
        "waitingSeconds": 90,
        "scheduler": "berth-scheduler",
        "requests": {"kubernetes.io/gpu-memory": 40 * GI, "kubernetes.io/gpu-core": 50, "cpu": 1000},
        "backoffSeconds": 0.0,
        "wakesOn": [],
        "message": "0/2 nodes are available",
        "reservedNode": "",
        **fields,
    }
    checked: QueuedPod = row
    return checked


# --- queue ------------------------------------------------------------------------------------------------------


def test_the_queue_is_printed_in_its_order() -> None:
    gang = {"name": "ring", "members": 3, "required": 4}
    backing_off = queued("b", 2, state="backoff", backoffSeconds=4.2, gang=gang, wakesOn=["pod deleted", "node added"])
    report = queue.report([backing_off, queued("gated", 0, state="gated"), queued("a", 1)])
    assert [row[0] for row in report.rows] == ["1", "2", "-"]
    assert report.rows[0][2:8] == ("a", "Active", "0", "90s", "-", "gpu-core=50,gpu-memory=40Gi")
    assert report.rows[1][3:7] == ("BackingOff", "0", "90s", "ring:3/4")
    assert report.rows[1][-4:] == ("4s", "", "pod-deleted,node-added", "0/2 nodes are available")
    assert report.rows[2][3] == "Gated"


# --- top --------------------------------------------------------------------------------------------------------


def test_top_adds_up_what_was_measured_and_counts_cards_that_are_held_and_idle() -> None:
    quiet = fleet_node("a", card(0, used=50, metrics=IDLE), card(1, metrics=IDLE))
    busy = fleet_node("b", card(0, used=100, metrics=BUSY), card(1, used=100))
    report = top.of_nodes([quiet, busy, fleet_node("none")])
    assert report.rows == [
        ("b", "2", "2", "0", "80%", "40Gi/160Gi", "350W"),
        ("a", "2", "1", "1", "0%", "40Gi/160Gi", "120W"),
    ]
    assert report.items[1] == {
        "node": "a", "gpus": 2, "held": 1, "idle": 1, "utilization": 0, "memoryUsed": 40 * GI, "power": 120
    }  # fmt: skip
    assert [row[0] for row in top.of_nodes([quiet, busy], idle=True).rows] == ["a"]
    assert [row[:2] for row in top.of_cards([quiet, busy], idle=True).rows] == [("a", "0")]


def test_top_says_that_nothing_was_measured() -> None:
    report = top.of_nodes([fleet_node("a", card(0))])
    assert (report.rows[0][-4:], report.notes) == (("-", "-", "-", "-"), [top.UNMEASURED])
    assert "idle" not in report.items[0]


def test_pods_that_hold_cards_and_use_none_of_them() -> None:
    fleet = [fleet_node("node-0", card(0, used=100, metrics=IDLE), card(1, used=100, metrics=BUSY))]
    pods = [holder("idle", part(0)), holder("half", part(0), part(1)), holder("elsewhere", part(0), node="gone")]
    report = top.of_pods((pods, fleet), idle=False, now=NOW)
    assert [(row[1], row[4]) for row in report.rows] == [("idle", "0%"), ("half", "40%")]
    assert [row[1] for row in top.of_pods((pods, fleet), idle=True, now=NOW).rows] == ["idle"]


# --- explain ----------------------------------------------------------------------------------------------------


WAITING: PodExplanation = {
    "metadata": {"name": "a", "namespace": "team", "uid": "1"},
    "state": "BackingOff",
    "message": "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) had untolerated taint(s).",
    "nodes": 3,
    "groups": [
        {"reasons": ["Insufficient cpu"], "counted": ["Insufficient cpu"], "filters": ["f"], "count": 9,
         "nodes": [f"n{i}" for i in range(7)]},
        {"reasons": ["taint", "cordoned"], "counted": ["taint"], "filters": ["t"], "count": 1, "nodes": ["m"]},
    ],
    "nearest": [
        {
            "node": "n0",
            "resources": {"cpu": 2500, "memory": GI},
            "cards": [{"type": "gpu", "minor": 1, "amounts": {"gpu-core": 30}}],
        }
    ],
    "fitsNow": False,
    "fitsWhenEmpty": 2,
    "newNodeHelps": True,
    "remedies": [
        {"kind": "NewNode", "answer": "DoesNotHelp", "message": "another node like n0 would not help", "node": "n0",
         "newNode": True},
        {"kind": "Label", "answer": "Ends", "message": "a node like n0 with the label pool=b would end the wait",
         "node": "n0", "newNode": True},
        {"kind": "End", "answer": "Ends", "message": "the end of pod b on n1 would end the wait", "node": "n1",
         "newNode": False},
    ],
    "outlook": [
        {"title": "Fits", "message": "not now; on 2 of 3 nodes if they were empty", "helps": True},
        {"title": "Preemption", "message": "not possible: no pod has a lower priority", "helps": False},
    ],
    "changes": {
        "title": "What would end the wait, for example, if nothing else changes",
        "answers": [{"message": "the end of pod b on n1 would end the wait", "helps": True}],
    },
    "inVain": False,
    "preemption": {"possible": False, "message": "no pod has a lower priority"},
    "gang": {
        "name": "ring", "members": 4, "required": 4, "firstWithoutPlace": "ring-2",
    },
    "reservation": {"node": "n1", "message": "6 of 8 GPUs are free"},
    "refusal": "decided for n1, refused by webhook/x: no",
    "queue": {"position": 3, "of": 12, "state": "backoff", "backoffSeconds": 4.2, "wakesOn": ["pod deleted"]},
}  # fmt: skip


def test_the_text_of_a_pod_that_waits() -> None:
    assert explaining.text(WAITING) == [
        "Pod:         team/a",
        "State:       BackingOff (position 3 of 12 in the queue, backs off for 4 s)",
        "Message:     0/3 nodes are available: 2 Insufficient cpu, 1 node(s) had untolerated taint(s).",
        "Fits:        not now; on 2 of 3 nodes if they were empty",
        "Preemption:  not possible: no pod has a lower priority",
        "Gang:        ring: 4 members, 4 required; the first without a place is ring-2.",
        "Reserved:    n1: 6 of 8 GPUs are free",
        "Refused:     decided for n1, refused by webhook/x: no",
        "Wakes on:    pod deleted",
        "",
        "What would end the wait, for example, if nothing else changes:",
        "",
        "the end of pod b on n1 would end the wait",
        "",
        "Nodes that lack amounts alone, the nearest first:",
        "",
        "NODE   LACKS",
        "n0     cpu=2500m,memory=1Gi; gpu 1: gpu-core=30",
        "",
        "All nodes, by what they lack:",
        "",
        "COUNT   NODES               REASONS",
        "9       n0,n1,n2,n3,n4,+4   Insufficient cpu",
        "1       m                   taint; cordoned",
    ]
    assert "9       n0,n1,n2,n3,n4,n5,n6,+2   Insufficient cpu" in explaining.text(WAITING, wide=True)


CLAIMS: Any = {
    "nodes": 12, "complete": False, "together": "n1 has enough devices for each request alone, but not for all",
    "requests": [
        {"claim": "team/a-gpu", "request": "gpu", "needed": 2, "devices": 96, "found": 1, "most": 1,
         "nodes": ["n1", "n2"], "enough": 0, "matching": 2,
         "leftOut": [{"devices": number, "why": f"of kind {number}", "selector": False} for number in (60, 20, 10, 5)]},
        {"claim": "team/a-nic", "request": "nic/sub-0", "needed": 0, "devices": 0, "found": 0, "most": 0,
         "nodes": [], "enough": 0, "matching": 0, "leftOut": []},
    ],
}  # fmt: skip


def test_the_text_of_what_claims_find() -> None:
    waiting = cast("PodExplanation", {**WAITING, "claims": CLAIMS})
    added = [line for line in explaining.text(waiting) if line not in explaining.text(WAITING)]
    assert added == [
        "Devices for its ResourceClaims on the first 12 node(s) that they keep it from:",
        "CLAIM        REQUEST     NEEDED   FOUND   ON   OTHERS",
        "team/a-gpu   gpu         2        1       n1   60 of kind 60; 20 of kind 20; 10 of kind 10; 1 more reason(s)",
        "team/a-nic   nic/sub-0   all      0       -    -",
        "n1 has enough devices for each request alone, but not for all",
    ]
    assert any(line.endswith("n1,n2   60 of kind 60; 20 of kind 20; 10 of kind 10; 5 of kind 5")
               for line in explaining.text(waiting, wide=True))  # fmt: skip


def test_cards_that_no_other_pod_may_use_must_become_free() -> None:
    whole = [{"type": "gpu", "minor": minor, "amounts": {}} for minor in range(2)]
    near = cast("PodExplanation", {**WAITING, "nearest": [{"node": "n0", "resources": {}, "cards": whole}]})
    assert "n0     gpu 0: must become free; gpu 1: must become free" in explaining.text(near)


def test_the_text_of_a_pod_that_is_bound() -> None:
    scores: Any = [
        {"node": "n1", "total": 90, "terms": {"full": 50, "links": 40}},
        {"node": "n2", "total": 7, "terms": {"full": 7}},
    ]
    bound: PodExplanation = {
        "metadata": WAITING["metadata"], "state": "Bound", "message": "bound to n1",
        "bind": {"kept": True, "message": "", "node": "n1", "scores": scores},
    }  # fmt: skip
    assert explaining.text(bound)[-3:] == [
        "NODE   TOTAL   FULL   LINKS",
        "n1     90      50     40",
        "n2     7       7      0",
    ]
    bound["bind"] = {"kept": False, "node": "n1", "scores": [], "message": "the leader has changed since the bind"}
    assert explaining.text(bound)[-1] == "not kept for the bind to n1: the leader has changed since the bind"


@pytest.mark.parametrize(
    ("text", "kind", "name", "namespace"),
    [
        ("a", "pod", "a", ""),
        ("po/a", "pod", "a", ""),
        ("Job/a", "job", "a", ""),
        ("deploy/a", "deployment", "a", ""),
        ("ml/a", "pod", "a", "ml"),
    ],
)
def test_what_may_be_explained(text: str, kind: str, name: str, namespace: str) -> None:
    assert explain.target(text) == explain.Target(kind=kind, name=name, namespace=namespace)


@pytest.mark.parametrize("text", ["jobb/a", "ml/", "ml/job/a"])
def test_a_mistyped_kind_is_no_namespace(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="allowed are POD, NAMESPACE/POD, pod/NAME, "):
        explain.target(text)


def test_on_a_terminal_long_fields_are_wrapped_and_elsewhere_they_are_one_line() -> None:
    long: PodExplanation = {**WAITING, "message": "0/9 nodes are available: " + "9 node(s) have a long reason, " * 9}
    assert max(map(len, explaining.text(long, width=80)[:8])) <= 80
    joined = " ".join(line.strip() for line in explaining.text(long, width=80))
    assert long["message"].strip() in joined
    assert any(long["message"].strip() in line for line in explaining.text(long))


LONG = "node(s) have devices that are not compared with the ResourceClaims yet, because the search ended at its bound"
QUOTA = "is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: 0, limited: 4"


@pytest.mark.parametrize(
    ("message", "of_event"),
    [
        (WAITING["message"], WAITING["message"]),
        pytest.param(f"nothing runs a scheduler x; {LONG}", LONG, id="of another scheduler's pod"),
        pytest.param(f"0/1 nodes are available: 1 {LONG}, 2 {LONG}.", f"0/1 nodes are available: 1 {LONG}", id="cut"),
        pytest.param(
            f'ReplicaSet chat: ReplicaFailure (FailedCreate): pods "chat-x7k2p" {QUOTA}',
            f'Error creating: pods "chat-zz4bq" {QUOTA}',
            id="of a controller",
        ),
    ],
)
def test_an_event_does_not_repeat_the_message(message: str, of_event: str) -> None:
    events = [{"time": "t", "type": "Warning", "reason": "Failed", "count": 1, "message": of_event}]
    lines = explaining.text({**WAITING, "message": message}, events)
    assert message in lines[2]
    assert lines[-1].endswith("Failed   1       as the message above")


@pytest.mark.parametrize("message", ["", 'persistentvolumeclaim "b" not found', "Failed: "])
def test_an_event_that_says_more_is_shown(message: str) -> None:
    events = [{"time": "t", "type": "Warning", "reason": "Failed", "count": 1, "message": message}]
    waiting: PodExplanation = {**WAITING, "message": 'persistentvolumeclaim "a" not found'}
    assert "as the message above" not in explaining.text(waiting, events)[-1]


def test_a_long_reason_is_whole_once_and_no_line_is_wider_than_the_terminal() -> None:
    reasons = [LONG, "node(s) had untolerated taint(s)", f"{LONG} of a later filter"]
    groups: Any = [{"reasons": reasons, "counted": [LONG], "filters": ["f"], "count": 9, "nodes": ["n1", "n2"]}]
    message = f"0/9 nodes are available: 9 {LONG}."
    waiting = cast("PodExplanation", {**WAITING, "message": message, "groups": groups, "claims": CLAIMS})
    lines = explaining.text(waiting)
    assert sum(line.count(LONG) for line in lines) == 2, (
        "in the message, and in a reason that the message does not have"
    )
    assert lines[-1] == (
        "9       n1,n2,+7   node(s) have devices that are not compared with the …; node(s) had untolerated taint(s); "
        f"{LONG} of a later filter"
    )
    assert "; ".join(reasons) in explaining.text(waiting, wide=True)[-1]
    events = [{"time": "t", "type": "Warning", "reason": "Failed", "count": 1, "message": f"{LONG} of an Event"}]
    wrapped = explaining.text(waiting, events, width=80)
    assert max(map(len, wrapped)) <= 80
    assert " ".join(line.strip() for line in wrapped).count(f"{LONG} of an Event") == 1


# --- forms ------------------------------------------------------------------------------------------------------


def printed(report: Report, form: str = "", *, headers: bool = True) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    Output(form=form, headers=headers, out=out, err=err).write(report)
    return out.getvalue(), err.getvalue()


REPORT = Report(
    kind="ThingList",
    columns=(Column(title="NAME"), Column(title="ID", wide=True), Column(title="NOTE")),
    rows=[("a", "1", "two words"), ("long-name", "", "\x1b[31mred\nline")],
    items=[{"name": "a"}],
    names=["thing/a"],
)


@pytest.mark.parametrize(
    ("form", "headers", "text"),
    [
        ("", True, "NAME        NOTE\na           two words\nlong-name    [31mred line\n"),
        ("", False, "a           two words\nlong-name    [31mred line\n"),
        ("wide", False, "a           1   two words\nlong-name   -    [31mred line\n"),
        ("name", True, "thing/a\n"),
        ("yaml", True, "apiVersion: visibility.berth.dev/v1alpha1\nkind: ThingList\nitems:\n- name: a\n"),
    ],
)
def test_forms(form: str, headers: bool, text: str) -> None:
    assert printed(REPORT, form, headers=headers) == (text, "")


def test_an_empty_list_is_said_on_standard_error() -> None:
    empty = Report(kind="ThingList", columns=REPORT.columns, rows=[], items=[])
    assert printed(empty) == ("", "No resources found\n")
    assert '"items": []' in printed(empty, "json")[0]


def test_a_watch_prints_what_changed() -> None:
    out = io.StringIO()
    later = Report(
        kind="ThingList", columns=REPORT.columns, rows=[REPORT.rows[0], ("b", "2", "new")], items=[{"name": "b"}]
    )
    Output(out=out, err=out).changes(REPORT, later)
    assert out.getvalue() == "b      new\n"


def test_a_watch_does_not_repeat_what_only_became_older() -> None:
    def waiting(seconds: int, state: str) -> Report:
        return queue.report([queued("a", 1, waitingSeconds=seconds, state=state)])

    for form in ("", "json"):
        out = io.StringIO()
        to = Output(form=form, out=out, err=out)
        to.changes(waiting(5, "active"), waiting(6, "active"))
        assert out.getvalue() == ""
        to.changes(waiting(5, "active"), waiting(6, "backoff"))
        assert "a" in out.getvalue()


def test_colours_are_for_cells_of_their_column() -> None:
    columns = (Column(title="A", style=lambda text: colours.RED if text == "bad" else ""), Column(title="B"))
    lines = tables.lines(columns, [("bad", "x"), ("good", "y")], colour=True)
    assert lines == ["A      B", "\x1b[31mbad \x1b[0m   x", "good   y"]
    assert not colours.are_wanted(io.StringIO())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (605, "10m"), (3900, "1h5m"), (90000, "1d1h"), (10**6, "11d")],
)
def test_durations(seconds: int, text: str) -> None:
    assert amounts.age(seconds) == text


@pytest.mark.parametrize(("amount", "text"), [(2000, "cpu=2"), (2500, "cpu=2500m"), (0, "cpu=0")])
def test_cpu_has_whole_cores_or_thousandths(amount: int, text: str) -> None:
    assert amounts.requests({"cpu": amount}) == text


# --- the command line -------------------------------------------------------------------------------------------


def test_flags_of_kubectl_are_passed_on_wherever_they_stand() -> None:
    before = arguments.parse(["--context", "free", "free", "--as=jane", "--as-group=a", "--as-group=b"])
    assert (before.verb, before.global_flags) == (
        "free",
        ("--context=free", "--as=jane", "--as-group=a", "--as-group=b"),
    )


@pytest.mark.parametrize(
    ("line", "namespace"),
    [
        ("queue -n x -A", ""),
        ("who -A --namespace=x", ""),
        ("top -n x -A", ""),
        ("queue -n x", "x"),
        ("queue", None),
        *((f"{verb} {flags}", "") for verb in ("free", "devices") for flags in ("", "-n x", "-A", "-n x -A")),
    ],
)
def test_all_namespaces_come_first_and_nodes_have_none(line: str, namespace: str | None) -> None:
    assert connecting.namespace_of(arguments.parse(line.split())) == namespace


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", 'unknown command "nonsense"; allowed are explain'),
        ("who --by moon", "argument --by: invalid choice: 'moon'"),
        ("explain jobb/a", '"jobb/a"; allowed are POD, NAMESPACE/POD, pod/NAME, job/NAME'),
        ("simulate", "the following arguments are required: -f/--file"),
    ],
)
def test_a_mistake_is_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = program.run(line.split())
    except SystemExit as ended:
        status = ended.code  # type: ignore[assignment]
    shown = capsys.readouterr().err
    assert (status, shown.count("\n")) == (2, 1)
    assert message in shown


def test_no_command_is_a_mistake() -> None:
    with pytest.raises(CommandError, match="no command was given"):
        arguments.parse([])


def test_no_command_loads_what_takes_long() -> None:
    heavy = "numpy pydantic asyncio rich structlog berth_operator berth_client"
    code = (
        "import sys\n"
        "from berth_kubectl import arguments\n"
        "from berth_kubectl.commands import completing\n"
        "[arguments.parser(verb) for verb in arguments.VERBS]\n"
        f"print([name for name in {heavy.split()} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


@pytest.mark.parametrize("verb", arguments.VERBS)
def test_every_verb_has_examples(verb: str) -> None:
    assert f"kubectl berth {verb}" in arguments.parser(verb).format_help().partition("examples:")[2]
