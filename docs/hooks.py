"""Pages of the site that stand outside of docs/, for ``mkdocs.yml``."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them, with their links as seen from docs/."""
    for name in OUTSIDE:
        text = Path(config.config_file_path).with_name(name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    return files
