"""Print lists: once, or again whenever something changes."""

import argparse
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from berth_kubectl.commands import connecting
from berth_kubectl.errors import ANSWERED
from berth_kubectl.printing import output
from berth_kubectl.printing.report import Report
from berth_kubectl.reading.following import followed
from berth_kubectl.reading.session import Session
from berth_kubectl.reading.views import View, first_of

T = TypeVar("T")


def show(
    options: argparse.Namespace,
    views: Callable[[Session], Sequence[View[T]]],
    report: Callable[[list[T], datetime], Report],
) -> int:
    """Print the report of the first view that can be read, and with `--watch` what changes."""
    to = output.standard(options.output, headers=options.headers)
    with connecting.session(options) as session:
        view, lists = first_of(session, views(session))
        if view.lacks:
            session.notes.append(f"without the visibility API {view.lacks}")
        first = report(view.rows(lists, session.now()), session.now())
        to.write(first)
        for note in (*session.notes, *first.notes) if not options.quiet else ():
            to.note(note)
        if options.watch:
            printed = first
            for changed in followed(session.api, view.sources, lists):
                current = report(view.rows(changed, session.now()), session.now())
                to.changes(printed, current)
                printed = current
    return ANSWERED
