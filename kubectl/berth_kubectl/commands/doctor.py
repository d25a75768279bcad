"""`kubectl berth doctor`: what is wrong with the installation, and which commands to type."""

import argparse
from typing import Final

from berth_kubectl.arguments import forms
from berth_kubectl.commands import connecting
from berth_kubectl.doctor.checks import Diagnosis, diagnose
from berth_kubectl.doctor.facts import Installation
from berth_kubectl.doctor.gathering import gather
from berth_kubectl.errors import ANSWERED, NEGATIVE, CommandError
from berth_kubectl.loading import heavy
from berth_kubectl.printing import colours, output
from berth_kubectl.printing.output import Output
from berth_kubectl.printing.tables import clean
from berth_kubectl.reading.session import ObjectReader

EXAMPLES: Final = """\
  kubectl berth doctor                       # exit status 1 if something is wrong
  kubectl berth doctor -o json               # findings, and what could not be checked
  kubectl berth doctor --system-namespace gpu-system
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    installation(parser)
    forms(parser, ("json", "yaml", "name"))


def installation(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name an installation."""
    usual = Installation()
    parser.add_argument(
        "--system-namespace",
        default=usual.namespace,
        metavar="NAME",
        help="namespace of the operator (default: %(default)s)",
    )
    parser.add_argument(
        "--agent-namespace",
        default=usual.agent_namespace,
        metavar="NAME",
        help="namespace of the agents (default: %(default)s)",
    )
    parser.add_argument(
        "--lease", default=usual.lease, metavar="NAME", help="name of the LeaderLease (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if there are any."""
    with connecting.session(options) as session:
        diagnosis = read(session.api, options)
    if not diagnosis.checked:
        raise CommandError(f"nothing could be checked: {next(iter(diagnosis.not_checked.values()))}")
    to = output.standard(options.output)
    show(diagnosis, to, quiet=options.quiet)
    return NEGATIVE if diagnosis.findings else ANSWERED


def read(api: ObjectReader, options: argparse.Namespace) -> Diagnosis:
    """Return what is wrong with the installation that the flags name.

    Raises:
        ReadError: the API server does not answer.
    """
    place = Installation(
        namespace=options.system_namespace, agent_namespace=options.agent_namespace, lease=options.lease
    )
    expected = heavy("definitions")
    return diagnose(gather(api, place, definitions=expected.wanted(), version=expected.own_version()))


def show(diagnosis: Diagnosis, to: Output, *, quiet: bool = False) -> None:
    """Write a diagnosis."""
    if to.form in ("json", "yaml"):
        to.document(diagnosis.body)
    elif to.form == "name":
        to.lines([finding.object for finding in diagnosis.findings])
    else:
        to.lines(text(diagnosis, colour=colours.are_wanted(to.out)))
        for name, why in diagnosis.not_checked.items() if not quiet else ():
            to.note(f"not checked: {name}: {why}")


def text(diagnosis: Diagnosis, *, colour: bool = False) -> list[str]:
    """Return the lines for people: three for each finding, and a summary."""
    lines = []
    for finding in diagnosis.findings:
        title = colours.coloured(finding.check, colours.RED if colour else "")
        lines += [
            f"{title}   {clean(finding.object)}",
            f"    {clean(finding.message)}",
            f"    try: {clean(finding.fix)}",
        ]
    count, checks = len(diagnosis.findings), len(diagnosis.checked)
    left_out = f", {len(diagnosis.not_checked)} not" if diagnosis.not_checked else ""
    return [*lines, f"{count} finding{'' if count == 1 else 's'}; {checks} checks made{left_out}"]
