"""When a GPU becomes unhealthy, and what makes it healthy again: every rule, as a story with its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_agent.health import catalogue
from berth_agent.health.catalogue import Remedy
from tests.unit.agent.health.film import QUIET, Film


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        # What the application has to mend: over after a quiet period, and not before.
        ("xid 94", "Xid94"),
        ("xid 94; read", "Xid94"),
        ("xid 94; wait 299; read", "Xid94"),
        ("xid 94; wait 300; read", ""),
        ("xid 94; wait 300", "Xid94"),  # only a reading ends it
        ("xid 94; wait 200; xid 94; wait 200; read", "Xid94"),
        ("xid 94; wait 200; xid 94; wait 300; read", ""),
        ("xid 94; reset", "Xid94"),  # a reset is not what it asks for
        ("xid 94; wait 299; restart; read", "Xid94"),
        ("xid 94; wait 299; restart; wait 299; read", "Xid94"),  # the quiet period begins again
        ("xid 94; restart; wait 300; read", ""),
        ("xid 69; xid 94; wait 300; read", ""),
        ("xid 69; wait 200; xid 94; wait 100; read", "Xid94"),
        # What asks for a reset: never over by time, nor because the driver answers.
        ("xid 109; read; wait 99999; read", "Xid109"),
        ("xid 95; reset", ""),
        ("xid 95; reset; read", ""),
        ("xid 95; restart; reset", ""),
        ("xid 95; forgive 0", ""),
        ("xid 95; forgive 0; xid 95", "Xid95"),
        ("xid 95; forgive 1", "Xid95"),
        ("xid 95; forgive 0,7", "Xid95"),  # a word that is not clear is not obeyed
        ("xid 999; wait 99999; read", "Xid999"),  # an unknown Xid
        ("xid 999; reset", ""),
        ("xid 48; dbe; read", "DoubleBitEcc Xid48"),
        ("dbe; reset", ""),
        ("xid 119; xid 94; reset", "Xid94"),
        ("xid 119; xid 94; wait 300; read", "Xid119"),
        # What asks for a reboot.
        ("xid 79; reset", "Xid79"),
        ("xid 79; reset; wait 99999; read", "Xid79"),
        ("xid 79; forgive GPU-0", ""),
        ("xid 79; xid 95; xid 94", "Xid79 Xid95 Xid94"),
        ("xid 79; xid 95; xid 94; reset", "Xid79 Xid94"),
        # A card that does not answer.
        ("read GpuIsLost", "GpuIsLost"),
        ("read GpuIsLost; reset", ""),
        ("read ResetRequired; read", "ResetRequired"),
        ("read ResetRequired; reset", ""),
        ("xid 79; read GpuIsLost; reset", "Xid79"),
        ("read Unknown", "Unknown"),
        ("read Unknown; read", "Unknown"),
        ("read Unknown; wait 200; read Unknown; wait 299; read", "Unknown"),
        ("read Unknown; wait 300; read", ""),
        # A driver that hangs, also when another agent starts meanwhile.
        ("hang; read", ""),
        ("restart; hang; restart; hang; read", ""),
        ("xid 48; restart; hang; restart; read", "Xid48"),
        ("xid 48; restart; hang; restart; reset", ""),
        ("xid 48; restart; hang; reboot; read", ""),
        ("xid 48; read; hang; restart; read", "Xid48"),
        ("xid 94; restart; hang; restart; read", "Xid94"),
        ("read RowRemapFailed; restart; hang; restart; read", ""),
        ("xid 95; read DriverNeedsReset; restart; hang; read DriverNeedsReset", "Xid95 DriverNeedsReset"),
        ("xid 95; read DriverNeedsReset; restart; hang; restart; read", ""),
        # What the driver measures at each reading.
        ("read RowRemapFailed", "RowRemapFailed"),
        ("read RowRemapFailed; read", ""),
        ("read RowRemapFailed; forgive 0; read RowRemapFailed", "RowRemapFailed"),
        ("read PageRetirementPending; read", ""),
        ("read TooManyPagesRetired; reset; read TooManyPagesRetired", "TooManyPagesRetired"),
        ("read EventsFailed", "EventsFailed"),
        ("read EventsFailed; read", ""),
        ("xid 94; wait 300; read PageRetirementPending", "PageRetirementPending"),
        ("xid 94; wait 100; read RowRemapFailed; wait 200; read RowRemapFailed", "RowRemapFailed"),
        # The driver's own word: that it asks for a reset no more shows that there was one.
        ("xid 95; read DriverNeedsReset", "Xid95 DriverNeedsReset"),
        ("xid 95; read DriverNeedsReset; read", ""),
        ("xid 95; read DriverNeedsReset; restart; read", ""),
        ("xid 95; read DriverNeedsReset; read GpuIsLost", "GpuIsLost Xid95"),
        ("xid 95; read DriverNeedsReset; read DriverNeedsReboot", "Xid95 DriverNeedsReboot"),
        ("xid 95; read DriverNeedsReset; read DriverNeedsDrain", "Xid95 DriverNeedsDrain"),
        ("xid 79; read DriverNeedsReset; read", "Xid79"),
        ("xid 95; read DriverNeedsReboot; read", "Xid95"),
        ("xid 95; read DriverNeedsDrain; read", "Xid95"),
        ("xid 94; read DriverNeedsReset; read", "Xid94"),
        # People's word.
        ("cordon 0", "Cordoned"),
        ("cordon 0; read; wait 99999; read", "Cordoned"),
        ("cordon 0; uncordon", ""),
        ("cordon 0; restart; read; uncordon", ""),
        ("cordon 0; restart", "Cordoned"),
        ("cordon 0; xid 79; uncordon", "Xid79"),
        ("cordon 0; xid 79; forgive 0", "Cordoned"),
        ("cordon 7", ""),
    ],
)
def test_a_gpu_s_story_ends_so(story: str, expected: str) -> None:
    film = Film()
    film.play(story)
    assert " ".join(film.faults) == expected


def test_a_gpu_with_faults_says_which_why_and_until_when() -> None:
    film = Film()
    film.play("xid 79; xid 94 3; cordon 0")
    card = film.shown.spec.devices[0]
    lost, contained = "Xid 79 (GPU has fallen off the bus)", "Xid 94 (contained memory error) on GPU instance 3"
    cordoned = "cordoned by the annotation berth.dev/cordoned-devices"
    assert not card.health
    assert [
        (condition.type, condition.status, condition.reason, condition.message) for condition in card.conditions
    ] == [
        (
            "Healthy",
            "False",
            "Xid79",
            f"{lost}; {contained}; {cordoned}",
        ),
        ("Xid79", "True", "UntilReboot", lost),
        ("Xid94", "True", "UntilQuiet", contained),
        ("Cordoned", "True", "WhileMeasured", cordoned),
    ]


def test_of_too_many_faults_the_easiest_are_left_out() -> None:
    film = Film()
    film.play("xid 8; xid 11; xid 69; xid 70; xid 71; xid 72; xid 79; xid 95")
    assert film.faults == ["Xid79", "Xid95", "Xid11", "Xid69", "Xid70", "Xid71", "Xid72"]
    assert len(film.shown.spec.devices[0].conditions) == 8


STEPS = st.sampled_from(
    ["xid 79", "xid 95", "xid 94", "dbe", "read", "read GpuIsLost", "read RowRemapFailed", "wait 100", "restart"]
)


@given(
    before=st.lists(STEPS, max_size=8), after=st.lists(st.sampled_from(["read", "wait 9999", "restart"]), max_size=6)
)
def test_neither_time_nor_answers_end_what_asks_for_a_reset(before: list[str], after: list[str]) -> None:
    film = Film()
    film.play("; ".join([*before, "read"]))
    hard = {kind for kind in film.faults if catalogue.of(kind) >= Remedy.RESET}
    film.play("; ".join(["read", *after]))
    assert hard <= set(film.faults)


@given(steps=st.lists(STEPS, max_size=10))
def test_a_reboot_an_annotation_or_a_reset_and_quiet_end_faults(steps: list[str]) -> None:
    rebooted, forgiven, waited = Film(), Film(), Film()
    for film in (rebooted, forgiven, waited):
        film.play("; ".join([*steps, "read"]))
    rebooted.play("reboot; read")
    forgiven.play("forgive 0; read")
    waited.play(f"wait {QUIET}; reset")
    assert (rebooted.faults, forgiven.faults) == ([], [])
    assert set(waited.faults) <= {"Xid79"}
