"""`python -m tests.fuzz.coverage TARGET MINUTES`: fuzz one parser with atheris.

atheris keeps inputs that reach new branches.
"""

import sys
from collections.abc import Callable
from typing import Any

import atheris
from hypothesis import given, settings

PACKAGES = ("berth_api", "berth_base", "berth_client", "berth_operator", "berth_agent")


def main() -> None:
    """Fuzz until the time is over, or an input fails; libFuzzer then writes it to a file and exits with a status."""
    _, name, minutes = sys.argv
    with atheris.instrument_imports(include=list(PACKAGES)):
        from tests.fuzz.target import check  # noqa: PLC0415 - instrumented while imported
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - the same
    target = TARGETS[name]

    @settings(database=None, deadline=None)
    @given(target.inputs)
    def each(value: Any) -> None:
        check(target, value)

    fuzz_one: Callable[[bytes], object] = each.hypothesis.fuzz_one_input  # type: ignore[attr-defined]
    atheris.Setup([sys.argv[0], f"-max_total_time={round(60 * float(minutes))}", "-max_len=8192"], fuzz_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
