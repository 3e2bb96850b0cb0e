"""Reports: one self-contained HTML file about a run, of public quantities only."""

from blindstep.insight.report.page import report, report_run_directory

__all__ = ["report", "report_run_directory"]
