"""One self-contained HTML page about a pipeline, for people who have no access to its cluster.

:func:`page` returns the document; it is pure. Everything else is internal to the package.
"""

from .page import ReportData, page

__all__ = ["ReportData", "page"]
