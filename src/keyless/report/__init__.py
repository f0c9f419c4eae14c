"""The report: one HTML file about one result, to open offline, print or send."""

from keyless.report.page import render

__all__ = ["render"]
