"""Parse the metrics that one agent exposes in Prometheus' text format: the GPUs of its own node."""

import math
import re
from collections import defaultdict
from typing import Final

from berth_operator.core.values.gpu_metrics import CardSample, Quantity
from berth_operator.metrics.gpu import families
from berth_operator.metrics.gpu.families import AGENT

READ_AT: Final = "berth_gpu_reading_timestamp_seconds"
"""When the agent read its cards, in seconds since 1970."""
MAX_AGE: Final = 30.0
"""Maximum age of a value that an agent exposes, whatever its clock or ours shows."""
MAX_CARDS: Final = 256
"""Cards of one agent; as many as a Device can list."""
_SERIES: Final = AGENT.by_name()
_READ: Final = frozenset({*_SERIES, READ_AT})
_LINE: Final = re.compile(r'([a-z_]+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? ([^ ]+)(?: -?[0-9]+)?')
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


def samples(text: str, node: str, now: float) -> list[CardSample]:
    """Return the samples of the cards of one node.

    Args:
        text: the agent's exposition. Lines that are invalid, or do not concern GPUs, are left out.
        node: the node on which the agent runs.
        now: seconds since 1970.
    """
    by_card: dict[str, dict[Quantity, float]] = defaultdict(dict)
    age = 0.0
    for line in text.splitlines():
        # Most lines are of other series, and splitting is faster than the pattern.
        if not line.startswith("berth_gpu_") or line.partition("{")[0] not in _READ:
            continue
        if (match := _LINE.fullmatch(line)) is None:
            continue
        name = match[1]
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = {
            label: _ESCAPED.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], escaped_value)
            for label, escaped_value in _LABEL.findall(match[2] or "")
        }
        if not math.isfinite(value) or labels.get(AGENT.node_label, node) != node:
            continue
        if name == READ_AT:
            age = min(max(now - value, 0.0), MAX_AGE)
        elif (uuid := labels.get(AGENT.uuid_label)) and (uuid in by_card or len(by_card) < MAX_CARDS):
            by_card[uuid][_SERIES[name].quantity] = value * _SERIES[name].unit
    return [CardSample(uuid=uuid, node=node, age=age, values=families.of_values(by_card[uuid])) for uuid in by_card]
