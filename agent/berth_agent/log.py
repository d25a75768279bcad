"""Log lines: one event with its values, as key=value or JSON, on standard output."""

import logging

import structlog

from berth_agent.configuration.settings import Settings


def configure(settings: Settings) -> None:
    """Set up logging for the whole process."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shapes: dict[str, structlog.typing.Processor] = {
        "text": structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        "json": structlog.processors.JSONRenderer(),
    }
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            shapes[settings.log_format],
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
