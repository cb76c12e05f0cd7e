"""Configure logging: one JSON object per line on standard error, with secrets redacted.

Records of Kopf and of libraries are included.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog

from triton_pipelines.redaction import MASK, redact_url

# Names of fields whose values must not be logged. Names such as `key` (a pipeline's key) and
# `secret` (a Secret's name) are harmless.
_SECRET_FIELD: Final = re.compile(
    r"(?i)(token(?!i[sz])|password|passwd|authorization|credential"
    r"|admin[-_]?key|control[-_]?key|secret[-_]?(access[-_]?)?key)"
)
_AUTHORIZATION: Final = re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}")
# Loggers whose debug and info records say nothing about pipelines: Kopf's watches, each probe, and
# each request to a pod's metrics. At debug level the Kubernetes client also logs bodies of answers,
# which may be Secrets.
_QUIET: Final = (
    "kopf.objects",
    "aiohttp.access",
    "asyncio",
    "httpx",
    "httpcore",
    "hpack",
    "grpc",
    "kubernetes",
)


def redact_text(text: str) -> str:
    """Redact credentials in text: user information and queries of URLs, authorization headers."""
    return _AUTHORIZATION.sub(rf"\1 {MASK}", redact_url(text))


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Redact secret fields and credentials in text, at any depth (a structlog processor)."""
    for name, value in event.items():
        event[name] = _redacted(name, value)
    return event


def _redacted(name: str, value: Any) -> Any:
    if _SECRET_FIELD.search(name):
        return MASK
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {key: _redacted(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted("", item) for item in value]
    return value


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Configure structlog and the standard library's root logger.

    Args:
        level: debug, info, warning or error.
        stream: where to write; standard error by default.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(allow=()),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        redact,
        structlog.processors.JSONRenderer(),
    ]
    structlog.configure(
        processors=[
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=render)
    )
    logging.getLogger().handlers[:] = [handler]
    _set_level(level)


def toggle_debug(configured: str) -> None:
    """Switch the log level between debug and the configured level (info, if that is debug)."""
    usual = "info" if configured == "debug" else configured
    level = usual if logging.getLogger().level == logging.DEBUG else "debug"
    _set_level(level)
    structlog.get_logger(__name__).warning("log level changed", log_level=level)


def _set_level(level: str) -> None:
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
