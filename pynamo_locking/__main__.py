"""``python -m pynamo_locking``: the command line."""

import sys

from pynamo_locking.cli import main

if __name__ == "__main__":
    sys.exit(main())
