"""First correspondences between tables, one start each."""

__all__: list[str] = []
