"""A page for the browser: what a run's outputs say, as one HTML file that asks nobody for anything (docs/report.md)."""
