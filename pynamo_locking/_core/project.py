"""Where the project is found."""

from typing import Final

#: The address of the repository, as "https://github.com/OWNER/pynamo-locking"; empty while it is undecided.
#: The addresses in errors are made from it. `pyproject.toml` has it too, for an index.
ADDRESS: Final = ""

#: The pages of `docs` as that host shows them, such as f"{FILES}/docs/reference/errors.md"; empty without an address.
FILES: Final = f"{ADDRESS}/blob/HEAD" if ADDRESS else ""
