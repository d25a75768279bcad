"""The form of log lines: JSON for collectors, text for people. No secret is ever passed to a logger."""

import logging
from typing import Literal

import structlog
from structlog.typing import Processor


def configure(form: Literal["text", "json"]) -> None:
    """Configure structlog, and the level and form of the libraries' lines."""
    renderer: Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # kopf warns at every start that its thread gets no signals; ours is stopped by a flag.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
