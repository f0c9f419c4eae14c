"""How likely rows of different tables are the same entity."""

__all__: list[str] = []
