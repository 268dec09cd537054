"""Logging: one JSON object per line, without the frameworks' routine messages."""

import json
import logging
import re
import sys
from datetime import UTC, datetime

QUIET = {
    "kopf": logging.WARNING,
    "kopf.objects": logging.WARNING,
    "kopf.activities": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "asyncio": logging.WARNING,
    "urllib3": logging.ERROR,
    "botocore": logging.WARNING,
    "aiobotocore": logging.WARNING,
    "s3fs": logging.WARNING,
    "fsspec": logging.WARNING,
    "gcsfs": logging.WARNING,
    "matplotlib": logging.WARNING,
    "fontTools": logging.WARNING,
}


KOPF_REQUESTS = "kopf._cogs.clients.watching"
"""kopf's logger of the requests that its watches send."""
REFUSED_AGAIN = re.compile(
    r"Request attempt #(?!1\b)\d+\S* failed; will retry: .*APIForbiddenError"
)


def is_news(record: logging.LogRecord) -> bool:
    """False for every attempt but the first of a watch that is refused, which may be for good."""
    return not REFUSED_AGAIN.match(record.getMessage())


class JsonFormatter(logging.Formatter):
    """Time in UTC, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str) -> None:
    """Log to standard error from `level` upwards, replacing all handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, quiet_level in QUIET.items():
        logger = logging.getLogger(name)
        logger.setLevel(max(quiet_level, root.level))
        logger.handlers.clear()
        logger.propagate = True
    requests = logging.getLogger(KOPF_REQUESTS)
    requests.filters[:] = [is_news]
