"""``python -m graphlink``: the command line."""

import sys

from graphlink.cli import main

if __name__ == "__main__":
    sys.exit(main())
