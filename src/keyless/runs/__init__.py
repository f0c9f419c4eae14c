"""A run as a folder: what `keyless link --out` writes, and what other commands read again."""

from __future__ import annotations

from keyless.runs.cells import file_names, spreadsheet_safe, spreadsheet_safe_frame
from keyless.runs.configuration import Fingerprint, check_unchanged, fingerprint, to_toml
from keyless.runs.dialect import OutFormat, check_format, dialect_of, for_ending, text_of, typed, write_table
from keyless.runs.folder import check_file, check_replaceable, write_file
from keyless.runs.outputs import (
    CONFIGURATION,
    RESULT,
    Run,
    match_records,
    matches_text,
    plain,
    read_run,
    with_ids,
    write_parquet,
    write_report,
    write_run,
)
from keyless.runs.resuming import Unfinished, open_unfinished

__all__ = [
    "CONFIGURATION",
    "RESULT",
    "Fingerprint",
    "OutFormat",
    "Run",
    "Unfinished",
    "check_file",
    "check_format",
    "check_replaceable",
    "check_unchanged",
    "dialect_of",
    "file_names",
    "fingerprint",
    "for_ending",
    "match_records",
    "matches_text",
    "open_unfinished",
    "plain",
    "read_run",
    "spreadsheet_safe",
    "spreadsheet_safe_frame",
    "text_of",
    "to_toml",
    "typed",
    "with_ids",
    "write_file",
    "write_parquet",
    "write_report",
    "write_run",
    "write_table",
]
