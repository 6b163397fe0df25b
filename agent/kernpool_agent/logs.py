"""Logging of the daemon: one line an event on stderr, control characters made visible."""

import logging
import sys
import time
from typing import final

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(0x80, 0xA0))} | {0x2028: "\\u2028"}


@final
class OneLine(logging.Formatter):
    """Time (UTC), level, logger, sentence; a traceback is folded into the same line."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line: a job's name can neither start a line of its own nor colour a terminal."""
        return super().format(record).translate(_ESCAPES)


def configure(level: str) -> None:
    """Send all of the process's logging to stderr at `level` and above."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
