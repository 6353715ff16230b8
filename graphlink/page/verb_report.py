"""``graphlink report``: a page for the browser of an earlier run, and its charts for slides."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import RUN_DIR, run_folder
from graphlink.cli.out import refuse_overwriting, tell, write_file
from graphlink.records import counted

_ABOUT: Final = "The page is one file that loads nothing from anywhere: open it, mail it, print it. docs/report.md"


REPORT_OPTIONS: Final = VerbOptions(
    (
        RUN_DIR,
        Option("-o", "--out", metavar="FILE", help="where to (default DIR/report.html)"),
        Option("--svg", metavar="FOLDER", help="also write the charts of the page into this folder, for slides"),
        Option("--png", metavar="FOLDER", help="the same as PNG: pip install '.[pictures]'"),
    ),
    epilog=_ABOUT,
)


def report(arguments: argparse.Namespace) -> int:
    """Write the page, and pictures of its charts; 0.

    Raises:
        InputError: the folder is of no earlier run, or a file of it cannot be read.
        OutputError: page or pictures cannot be written.
        UsageError: the page would overwrite another file, or nothing makes PNG.
    """
    folder = run_folder(arguments.dir)
    from graphlink import publish
    from graphlink.output_names import PAGE
    from graphlink.page.render import as_png, html, pictures, write
    from graphlink.run.library import open as open_run

    beside = folder / PAGE
    file = beside if arguments.out is None else Path(arguments.out)
    inside = file.resolve() == beside.resolve()
    if not inside:
        refuse_overwriting(argparse.Namespace(dir=arguments.dir, out=arguments.out), "out")
    page = open_run(folder).page()
    data = html(page).encode()
    lines = [f"{file}: {counted(len(page.sections), 'section')}, {len(data) / 1e6:.2f} MB"]
    if arguments.svg or arguments.png:
        drawn = pictures(page)
        wanted = [
            *([(arguments.svg, drawn)] if arguments.svg else []),
            *([(arguments.png, as_png(drawn))] if arguments.png else []),
        ]
        for where, files in wanted:
            write(files, Path(where))
            lines.append(f"{where}: {counted(len(files), 'picture')}")
    if inside:
        publish.add(folder, PAGE, data)
    else:
        write_file(file, data, "--out")
    tell(arguments.json, page, lambda: lines)
    return 0
