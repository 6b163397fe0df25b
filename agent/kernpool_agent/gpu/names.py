"""NVML's product names as people write them in task files: `NVIDIA H100 80GB HBM3` is `H100`."""

import re

_NOISE = re.compile(
    r"\b(NVIDIA|Tesla|Quadro|GeForce|Graphics Device|GPU|Generation|Laptop|SXM\d?|PCIe?|HBM\w*|NVL)\b", re.IGNORECASE
)
_SIZE = re.compile(r"\b(\d+)\s?GB\b", re.IGNORECASE)
_SIZED_MODELS = {("A100", "80")}
"""Models whose larger memory is part of the name people use (A100-80GB); all others have one usual size."""
_FAMILIES = ("RTX", "GTX", "TITAN")
"""Family words that are written together with the number behind them: RTX4090."""


def short_name(product: str) -> str:
    """Return the short name, e.g. H100, A100-80GB, L40S, RTX4090, RTX6000-Ada; an unknown shape stays as it is."""
    size = _SIZE.search(product)
    words = _NOISE.sub(" ", _SIZE.sub(" ", product)).replace("-", " ").split()
    if not words:
        return product.strip()
    if words[0].upper() in _FAMILIES and len(words) > 1:
        words = [words[0].upper() + words[1], *words[2:]]
    name = "-".join(words)
    if size and (name, size.group(1)) in _SIZED_MODELS:
        name += f"-{size.group(1)}GB"
    return name
