"""Render answers about workloads as lines for people and as JSON."""

from typing import Any, Final

from berth_api.values.printing import printable
from berth_operator.commands.migrate.manifests import MigrationAnswer, Problem
from berth_operator.commands.migrate.workloads import MigrationResult

Report = dict[str, Any]

DONE: Final = 0
"""All workloads are unchanged or rewritten."""
SOME_NOT: Final = 1
"""Something is lost or impossible."""
NOT_READ: Final = 2
"""A file or a document could not be read; the others were."""


def of_answer(answer: MigrationAnswer) -> Report:
    """Return an answer for programs."""
    workload = answer.workload
    more = {"becomes": workload.becomes, "schedulerName": workload.scheduler, "why": workload.why}
    return {
        "file": answer.file,
        "line": answer.line,
        "kind": workload.kind,
        "namespace": workload.namespace,
        "name": workload.name,
        "result": str(workload.outcome),
        "words": list(workload.words),
        **{name: text for name, text in more.items() if text},
        **({"lost": list(workload.lost)} if workload.lost else {}),
    }


def of_problem(problem: Problem) -> Report:
    """Return a problem for programs."""
    place = {"line": problem.line, "column": problem.column} if problem.line else {}
    return {"file": problem.file, **place, "message": problem.message}


def line_of(answer: MigrationAnswer) -> str:
    """Return the line about a workload."""
    workload = answer.workload
    place = f"{answer.file}:{answer.line}" if answer.line else answer.file
    title = f"{workload.kind} {workload.namespace}{'/' if workload.namespace else ''}{workload.name}"
    if workload.outcome == MigrationResult.IMPOSSIBLE:
        detail = f": {workload.why}"
    else:
        lost = f"; lost: {'; '.join(workload.lost)}" if workload.lost else ""
        detail = f": {workload.becomes or 'no cards'}{lost}"
    return printable(f"{place}: {title}: {workload.outcome}{detail}")


def line_of_problem(problem: Problem) -> str:
    """Return the line about what could not be read."""
    place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    return printable(f"{place}: not readable: {problem.message}")


class Summary:
    """Counts answers and problems, for the summary and the exit status."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(MigrationResult, 0)
        self.files = self.without_words = self.problems = 0

    @property
    def status(self) -> int:
        """Return the exit status."""
        if self.problems:
            return NOT_READ
        return SOME_NOT if self.outcomes[MigrationResult.PARTLY] or self.outcomes[MigrationResult.IMPOSSIBLE] else DONE

    @property
    def summary(self) -> str:
        """Return the summary for people."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        unread = f", {self.problems} not readable" if self.problems else ""
        files = f" in {self.files} file(s), {self.without_words} of them without a known word" if self.files else ""
        return f"{sum(self.outcomes.values())} workload(s){files}: {counts}{unread}"

    def report(self) -> Report:
        """Return the counts for programs."""
        counts = {str(outcome): count for outcome, count in self.outcomes.items()}
        return {"files": self.files, "withoutWords": self.without_words, **counts, "notReadable": self.problems}
