"""Record random sequences of events, and compare records of two commits: `PYTHONHASHSEED=0 python -m tests.sequences`.

* `record FILE`: write the record of SEEDS sequences, a line of JSON each.
* `compare FILE`: run the sequences of a record again and print what differs to stderr; the last line is JSON.

A refactoring is right if the record of the commit before it is the record of the commit after it: the same Bindings,
nominations, conditions, evictions, answers to kube-scheduler, and records for the next leader.
"""

import argparse
import difflib
import json
import logging
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import looptime
import structlog

from tests.bench import figures
from tests.sequences.events import Sequence

SHOWN: Final = 20
"""Lines of a difference that are printed."""


def main() -> int:
    """Run a command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sequences", description=__doc__)
    parser.add_argument("command", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=1000, help="how many sequences to record")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        parser.error("sets of names are read in the order of their hashes: set PYTHONHASHSEED=0")
    is_record = arguments.command == "record"
    before = {} if is_record else dict(map(json.loads, arguments.file.read_text().splitlines()))
    seeds = range(arguments.seeds) if is_record else before
    with ProcessPoolExecutor(arguments.workers) as pool:
        after = dict(zip(seeds, pool.map(recorded, seeds, chunksize=10), strict=True))
    if is_record:
        arguments.file.write_text("".join(f"{json.dumps(each)}\n" for each in after.items()))
        figures.result({"sequences": len(after), "lines": sum(map(len, after.values()))})
        return 0
    different = [seed for seed in before if before[seed] != after[seed]]
    for seed in different:
        difference = difflib.unified_diff(
            before[seed], after[seed], f"{seed} before", f"{seed} after", lineterm="", n=2
        )
        figures.say("\n".join(list(difference)[:SHOWN]))
    figures.result({"sequences": len(before), "different": len(different)})
    return bool(different)


def recorded(seed: int) -> list[str]:
    """Return the record of a sequence."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    random.seed(seed)
    loop = looptime.new_event_loop()
    try:
        return loop.run_until_complete(Sequence(seed).run())
    finally:
        loop.close()


if __name__ == "__main__":
    sys.exit(main())
