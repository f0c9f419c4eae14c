"""Who does the work: this process, or the workers of a Dask cluster; and rows of numbers that are on a disk."""

from keyless.cluster.on_disk import OnDisk, scratch_folder
from keyless.cluster.workers import LOCAL, Workers, connected, current_workers, local_workers

__all__ = ["LOCAL", "OnDisk", "Workers", "connected", "current_workers", "local_workers", "scratch_folder"]
