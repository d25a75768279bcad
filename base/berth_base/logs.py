"""The format of log lines, both Berth's and libraries': JSON for collectors, text for people.

No secret is ever passed to a logger.
"""

import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal

import structlog
from pydantic_settings import BaseSettings
from structlog.typing import Processor

from berth_base import start
from berth_base.version import version

Form = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_SHARED: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)

_RENDERERS: Final[Mapping[Form, Processor]] = {
    "text": structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
    "json": structlog.processors.JSONRenderer(),
}


def configure(*, form: Form, level: Level) -> None:
    """Configure the lines of structlog, of `logging`, of warnings and of uncaught exceptions, all alike.

    Args:
        form: the form of a line.
        level: the least severity that is logged; libraries log from warnings on.
    """
    severity = logging.getLevelNamesMapping()[level.upper()]
    renderer = _RENDERERS[form]
    structlog.configure(
        processors=[*_SHARED, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(severity),
        # One `write` for each line: libraries write to the same file.
        logger_factory=structlog.WriteLoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *_SHARED],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=max(severity, logging.WARNING), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        _log.critical("uncaught exception", exc_info=(kind, error, trace))


def _uncaught_in_thread(uncaught: threading.ExceptHookArgs) -> None:
    if uncaught.exc_value is not None:
        trace = (uncaught.exc_type, uncaught.exc_value, uncaught.exc_traceback)
        _log.critical("uncaught exception", thread=getattr(uncaught.thread, "name", ""), exc_info=trace)


def started(settings: BaseSettings, environment: Mapping[str, str], *, others: Sequence[str] = (), **more: Any) -> None:
    """Log the version and the effective settings, and each variable that looks like a setting and is none.

    Args:
        settings: the settings.
        environment: the environment variables.
        others: prefixes of variables of other programs.
        more: further values for the first line.
    """
    _log.info("started", version=version(), settings=start.effective(settings), **more)
    for name, similar in start.unknown_variables(type(settings), environment, others=others):
        _log.warning("environment variable without effect", variable=name, nearest=similar)
