"""Query strings that several routes share, and the paging of short lists that the core gives whole."""

from typing import Annotated, Any, Final

from pydantic import Field

from kernpool_coordinator.core.shapes import Listing
from kernpool_coordinator.http.route import QueryModel

PAGE_ITEMS_MAX: Final = 1000
Cursor = Annotated[str, Field(max_length=300)]
Filter = Annotated[str, Field(max_length=200)]


class PageQuery(QueryModel):
    """Which page of a list."""

    limit: Annotated[int, Field(ge=1, le=PAGE_ITEMS_MAX)] = 100
    after: Cursor = ""
    """`next` of the page before; empty: the first page."""


def page_of(items: list[dict[str, Any]], query: PageQuery) -> Listing:
    """The page of a list whose items have unique ids, in the order of those."""
    rest = sorted((item for item in items if item["id"] > query.after), key=lambda item: str(item["id"]))
    page = rest[: query.limit]
    return Listing(page, page[-1]["id"] if len(rest) > len(page) else "")
