"""What came of a bulk create, in both SDKs: a sequence of items and the questions people ask of it."""

from collections.abc import Sequence
from typing import Generic, TypeVar, overload

from kernpool.results import Created

S = TypeVar("S")


class Items(Sequence[Created[S]], Generic[S]):
    """The items in the order in which they came."""

    __slots__ = ("_items",)

    def __init__(self, items: list[Created[S]]) -> None:
        self._items = items

    @overload
    def __getitem__(self, index: int) -> Created[S]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Created[S]]: ...
    def __getitem__(self, index: int | slice) -> Created[S] | list[Created[S]]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.created} created, {self.failed} failed)"

    @property
    def sandboxes(self) -> list[S]:
        """The handles of those that were made."""
        return [item.sandbox for item in self._items if item.error is None]

    @property
    def ids(self) -> list[str]:
        """The ids of those that were made."""
        return [item.id for item in self._items if item.error is None]

    @property
    def created(self) -> int:
        """How many were made."""
        return len(self.ids)

    @property
    def failed(self) -> int:
        """How many could not be made."""
        return len(self._items) - self.created

    @property
    def ok(self) -> bool:
        """All were made, and the command, if any, exited with 0 in each."""
        return all(item.ok for item in self._items)
