"""The page: one HTML file about one or several runs, made from the files in their folders and from nothing else."""

from isoconv.report.demo import DemoRow, write_demo
from isoconv.report.page import Report, write_report
from isoconv.report.run_files import RunFiles, read_run_files

__all__ = ["DemoRow", "Report", "RunFiles", "read_run_files", "write_demo", "write_report"]
