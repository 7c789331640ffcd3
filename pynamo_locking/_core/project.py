"""Where the project is found. `hatch_build.py` runs this file by itself, so it imports nothing of the package."""

from typing import Final

#: The address of the repository, as "https://github.com/OWNER/pynamo-locking"; empty while it is undecided.
#: All other addresses are made from it: those in errors, in the metadata, and of the README's links on an index.
ADDRESS: Final = ""

#: The pages of `docs` as that host shows them, such as f"{FILES}/docs/reference/errors.md"; empty without an address.
FILES: Final = f"{ADDRESS}/blob/HEAD" if ADDRESS else ""
