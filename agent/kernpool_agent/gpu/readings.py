"""One value that NVML was asked for: known, not supported by this card, or an error; never a made-up number."""

from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """Exactly one of the three is told."""

    value: Any = None
    """What the card said; None when it did not."""
    unsupported: bool = False
    """This card, mode (MIG) or driver has no such value: no fault."""
    error: str = ""
    """NVML's own words when the call failed."""
    error_code: int = 0
    """NVML's return code, e.g. 15: the GPU is lost."""

    def to_json(self) -> dict[str, Any]:
        """Return the shortest form that `from_json` understands."""
        if self.error:
            return {"error": self.error, "code": self.error_code}
        return {"unsupported": True} if self.unsupported else {"value": self.value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Reading":
        """Return what `to_json` wrote."""
        return cls(data.get("value"), bool(data.get("unsupported")), data.get("error", ""), data.get("code", 0))

    def __str__(self) -> str:
        return self.error or ("unsupported" if self.unsupported else str(self.value))
