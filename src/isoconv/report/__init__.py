"""The page: one HTML file about one or several runs, made from the files in their folders and from nothing else."""

from isoconv.report.page import check_replaceable, write_report
from isoconv.report.run_files import RunFiles, read_run_files

__all__ = ["RunFiles", "check_replaceable", "read_run_files", "write_report"]
