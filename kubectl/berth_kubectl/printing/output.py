"""Write reports in the format that `-o` selects."""

import shutil
import sys
from dataclasses import dataclass
from typing import Any, TextIO

import orjson

from berth_kubectl.printing import colours, tables
from berth_kubectl.printing.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where and how reports are written."""

    form: str = ""
    """One of `arguments.FORMS`, or empty for a table."""
    headers: bool = True
    out: TextIO
    err: TextIO

    @property
    def terminal_width(self) -> int:
        """How many columns the terminal has; 0 if the output goes elsewhere, where a field is one line."""
        return shutil.get_terminal_size().columns if self.out.isatty() else 0

    def write(self, report: Report) -> None:
        """Write a report."""
        if self.form in ("json", "yaml"):
            self.document(report.body)
        elif self.form == "name":
            self.lines([*map(tables.clean, report.names)])
        elif report.rows:
            self.lines(self.table(report))
        else:
            self.note(report.empty)

    def changes(self, before: Report, after: Report) -> None:
        """Write what is new or different in a later report: rows without a header, or items one by one."""
        if self.form in ("json", "yaml"):
            known = {orjson.dumps(before.stable_item(item)) for item in before.items}
            for item in after.items:
                if orjson.dumps(after.stable_item(item)) not in known:
                    self.out.write("---\n" if self.form == "yaml" else "")
                    self.document(item)
            self.out.flush()
        elif self.form == "name":
            self.lines([tables.clean(name) for name in after.names if name not in before.names])
        else:
            printed, table = {*map(before.stable_row, before.rows)}, self.table(after)
            lines = table[1:] if self.headers else table
            changed = zip(lines, map(after.stable_row, after.rows), strict=True)
            self.lines([line for line, row in changed if row not in printed])

    def table(self, report: Report) -> list[str]:
        """Return the lines of a report's table."""
        return tables.lines(
            report.columns,
            report.rows,
            wide=self.form == "wide",
            headers=self.headers,
            colour=colours.are_wanted(self.out),
        )

    def document(self, body: Any) -> None:
        """Write JSON or YAML."""
        if self.form == "json":
            self.out.write(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode() + "\n")
        else:
            import yaml

            self.out.write(str(yaml.safe_dump(body, sort_keys=False, allow_unicode=True)))

    def lines(self, lines: list[str]) -> None:
        """Write lines."""
        self.out.writelines(f"{line}\n" for line in lines)
        self.out.flush()

    def note(self, text: str) -> None:
        """Write a line about the answer on standard error."""
        self.out.flush()
        self.err.write(f"{tables.clean(text)}\n")
        self.err.flush()


def standard(form: str = "", *, headers: bool = True) -> Output:
    """Return the output to this process's streams."""
    return Output(form=form, headers=headers, out=sys.stdout, err=sys.stderr)
