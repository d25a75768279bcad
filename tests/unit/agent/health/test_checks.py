"""Which Xids count: the classes of NVIDIA's catalogue, and the two variables of its plugin."""

import pytest

from berth_agent.health import checks
from berth_agent.health.catalogue import Remedy
from berth_agent.health.checks import ChecksError
from berth_agent.vendors.nvidia import catalogue


@pytest.mark.parametrize(
    ("disabled", "enabled", "xid", "expected"),
    [
        # By default: what the catalogue asks for, less the mistakes of applications that NVIDIA's plugin ignores, too.
        *[("", "", xid, False) for xid in (13, 31, 43, 45, 68)],
        *[("", "", xid, False) for xid in (14, 37, 38, 44, 63, 66, 67, 92, 93, 106, 121, 137, 141, 154, 157, 160, 163)],
        *[("", "", xid, True) for xid in (8, 48, 61, 62, 64, 69, 74, 79, 92 + 2, 95, 109, 110, 119, 120, 136, 140)],
        *[("", "", xid, True) for xid in (143, 144, 150, 151, 155, 156, 158, 167, 171, 999)],
        ("all", "", 79, False),
        ("all", "", 48, False),
        ("xids", "", 79, False),
        ("79", "", 79, False),
        ("79", "", 48, True),
        ("109", "", 109, False),
        (" 48 , 79 ", "", 79, False),
        ("ALL", "", 79, False),
        ("XIDS", "", 79, False),
        ("79,", "", 79, False),
        (",", "", 79, True),
        # What is enabled wins over everything, the ones that are ignored by default included.
        ("all", "79", 79, True),
        ("all", "79", 48, False),
        ("xids", "79", 79, True),
        ("79", "79", 79, True),
        ("", "13", 13, True),
        ("", "13", 31, False),
        ("", "63", 63, True),
        ("", "all", 13, True),
        ("", "all", 43, True),
        ("all", "all", 13, True),
        ("xids", "xids", 79, True),
        ("79", "all", 79, True),
        ("48,all", "31,79", 31, True),
        ("48,all", "31,79", 48, False),
    ],
)
def test_an_xid_counts_or_does_not(*, disabled: str, enabled: str, xid: int, expected: bool) -> None:
    assert checks.read(disabled=disabled, enabled=enabled).counts(xid) is expected


@pytest.mark.parametrize(
    ("disabled", "enabled", "memory", "events"),
    [
        ("", "", True, True),
        ("all", "", False, False),
        ("all", "79", False, True),
        ("all", "all", True, True),
        ("xids", "", True, True),
        ("79", "", True, True),
    ],
)
def test_only_all_switches_the_checks_of_memory_off(*, disabled: str, enabled: str, memory: bool, events: bool) -> None:
    parsed = checks.read(disabled=disabled, enabled=enabled)
    assert (parsed.memory, parsed.events) == (memory, events)


@pytest.mark.parametrize(
    ("disabled", "enabled", "expected"),
    [
        ("none", "", 'DP_DISABLE_HEALTHCHECKS: "none" is no Xid; allowed are "all", "xids", or numbers'),
        ("79,-1", "", 'DP_DISABLE_HEALTHCHECKS: "-1" is no Xid'),
        ("79 48", "", 'DP_DISABLE_HEALTHCHECKS: "79 48" is no Xid'),
        ("noxids", "", 'DP_DISABLE_HEALTHCHECKS: "noxids" is no Xid'),
        ("", "7.9", 'DP_ENABLE_HEALTHCHECKS: "7.9" is no Xid'),
        ("", "²", 'DP_ENABLE_HEALTHCHECKS: "²" is no Xid'),
    ],
)
def test_what_is_no_list_of_xids_is_refused(disabled: str, enabled: str, expected: str) -> None:
    with pytest.raises(ChecksError) as refused:
        checks.read(disabled=disabled, enabled=enabled)
    assert str(refused.value).startswith(expected)


@pytest.mark.parametrize(
    ("remedy", "xids"),
    [
        (Remedy.NOTHING, (14, 37, 43, 44, 45, 63, 67, 93, 107, 108, 121, 141, 152, 154, 157, 161, 165)),
        (Remedy.QUIET, (8, 11, 13, 25, 31, 32, 39, 41, 60, 68, 72, 75, 77, 80, 82, 86, 89, 94, 96, 105, 126, 135, 139)),
        (Remedy.RESET, (46, 48, 61, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 144, 150, 155, 156, 158, 167)),
        (Remedy.REBOOT, (54, 78, 79, 151)),
    ],
)
def test_what_ends_an_xid_is_what_the_catalogue_says(remedy: Remedy, xids: tuple[int, ...]) -> None:
    assert {xid: catalogue.of_xid(xid) for xid in xids} == dict.fromkeys(xids, remedy)


def test_an_xid_that_people_enabled_is_over_when_it_is_quiet() -> None:
    assert (catalogue.of("Xid13"), catalogue.of("Xid63"), catalogue.of("Xid79")) == (
        Remedy.QUIET,
        Remedy.QUIET,
        Remedy.REBOOT,
    )
