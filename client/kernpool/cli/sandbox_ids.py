"""Sandboxes as people name them: a whole id, or a beginning of one that fits no other."""

import re
from typing import Final

from kernpool.errors import NotFoundError
from kernpool.sdk.client import Client

WHOLE_ID: Final = re.compile(r"sb-[a-z2-7]{16}")


def find_id(client: Client, text: str) -> str:
    """Give the whole id; a whole one costs no call. Raises NotFoundError for none, or for several."""
    if WHOLE_ID.fullmatch(text):
        return text
    start = text if text.startswith("sb-") else f"sb-{text}"
    fitting = [info.id for info in client.sandboxes.ls() if info.id.startswith(start)] if text else []
    if len(fitting) == 1:
        return fitting[0]
    what = f"{len(fitting)} sandboxes begin" if fitting else "There is no sandbox that begins"
    raise NotFoundError(f"{what} with {text!r}.", hint="See: kernpool sandbox ls", code="not_found")
