"""Where the project is found."""

from typing import Final

#: The address of the repository, as "https://github.com/OWNER/pynamo-locking"; empty while it is undecided.
#: The addresses in errors are made of it, and by `hatch_build.py` those that an index shows.
ADDRESS: Final = ""

#: The pages of `docs` as that host shows them, such as f"{FILES}/docs/reference/errors.md"; empty without an address.
FILES: Final = f"{ADDRESS}/blob/HEAD" if ADDRESS else ""
