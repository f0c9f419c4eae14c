"""Who does the work: this process, a card of this machine, or the workers of a Dask cluster; numbers on a disk."""

from keyless.cluster.on_disk import OnDisk, ScratchFolder
from keyless.cluster.workers import (
    LOCAL,
    Workers,
    computing_on,
    connected,
    current_workers,
    device_for,
    local_workers,
)

__all__ = [
    "LOCAL",
    "OnDisk",
    "ScratchFolder",
    "Workers",
    "computing_on",
    "connected",
    "current_workers",
    "device_for",
    "local_workers",
]
