"""Tables as users have them ↔ blocks, and exactly back. NaN means missing here, and only here."""

from keyless.tables.files import stem
from keyless.tables.frames import Dialect
from keyless.tables.memory import available_memory, in_words, memory_needed
from keyless.tables.observations import to_anndata, to_mudata
from keyless.tables.places import place_of, source_file
from keyless.tables.reader import read_cells, read_like, read_table, read_tables
from keyless.tables.reading_options import MISSING, ColumnUse, Reading
from keyless.tables.table import Table, frame_like, with_missingness
from keyless.tables.table_names import name_tables

__all__ = [
    "MISSING",
    "ColumnUse",
    "Dialect",
    "Reading",
    "Table",
    "available_memory",
    "frame_like",
    "in_words",
    "memory_needed",
    "name_tables",
    "place_of",
    "read_cells",
    "read_like",
    "read_table",
    "read_tables",
    "source_file",
    "stem",
    "to_anndata",
    "to_mudata",
    "with_missingness",
]
