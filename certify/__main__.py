"""``python -m certify``: ask a DynamoDB for what the package promises."""

import sys

from certify import command
from pynamo_locking.cli import app

if __name__ == "__main__":
    sys.exit(app.run(["certify", *sys.argv[1:]], command))
