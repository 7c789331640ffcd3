"""Look at the built documentation as a visitor would: ``make look``.

Opens every page in a headless browser, as wide as a desktop and as a phone, and takes screenshots of some. Fails if a
page is wider than its window, asks for anything that is not there or is elsewhere, or complains; or if the search does
not put the page about a term first.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Request

BUILT: Final = Path(__file__).resolve().parents[1] / "_build"
SIZES: Final = {"desktop": (1280, 900), "phone": (390, 844)}
#: Of these there are screenshots, light and dark.
SHOWN: Final = (
    "index",
    "tutorial",
    "explanation/concepts",
    "explanation/protocol",
    "how-to/use-versions",
    "how-to/command-line",
    "how-to/operate",
    "how-to/use-with-flask",
    "reference/api",
    "reference/api/locks",
    "reference/costs",
    "reference/errors",
    "benchmarks/locks",
)
#: The words of the field, and the page that is about each.
SEARCHED: Final = {
    "distributed lock": "how-to/lock-without-an-item",
    "mutex": "how-to/lock-without-an-item",
    "optimistic locking": "how-to/use-versions",
    "pessimistic locking": "explanation/concepts",
    "semaphore": "how-to/share-a-lock",
    "reader-writer lock": "how-to/share-a-lock",
    "leader election": "how-to/elect-a-leader",
    "fencing token": "explanation/concepts",
    "cron": "how-to/run-once",
    "work queue": "how-to/work-queue",
    "SKIP LOCKED": "how-to/work-queue",
    "idempotency key": "how-to/idempotency",
    "exclusion constraint": "how-to/disjoint-intervals",
    "unique constraint": "how-to/unique-values",
    "write skew": "how-to/move-money",
    "two-phase commit": "how-to/large-transactions",
    "lost update": "explanation/concepts",
    "hot key": "how-to/hot-keys",
}
#: What a machine without a screen and without the Internet needs.
OPTIONS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def main() -> int:
    """Look at all pages; return 1 if something is wrong with one of them."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("There is no Chromium here: install it (Debian's package chromium), or name it in CHROMIUM.")
        return 1
    pages = sorted((BUILT / "html").rglob("*.html"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
        found = [problem for size in SIZES for problem in _problems(browser, size, pages)]
        found += _not_first(browser)
    print(
        *found,
        f"{len(pages)} pages, each {' and '.join(SIZES)}; {len(SEARCHED)} terms; screenshots in {BUILT / 'screens'}",
        sep="\n",
    )
    return 1 if found else 0


def _problems(browser: Browser, size: str, pages: list[Path]) -> Iterator[str]:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("requestfailed", lambda request: said.append(f"not there: {request.url}") if not _is_cut(request) else None)
    page.on("request", lambda request: said.append(f"elsewhere: {request.url}") if "http" in request.url[:5] else None)
    for each in pages:
        page.goto(each.as_uri())
        too_wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        said += [f"{too_wide} pixels too wide"] if too_wide > 0 else []
        name = each.relative_to(BUILT / "html").with_suffix("").as_posix()
        yield from (f"{name} ({size}): {problem}" for problem in said)
        said.clear()
        if name in SHOWN:
            _show(page, f"{name.replace('/', '-')}-{size}")


def _not_first(browser: Browser) -> Iterator[str]:
    page = browser.new_page()
    for term, wanted in SEARCHED.items():
        page.goto(f"{(BUILT / 'html' / 'search.html').as_uri()}?q={quote(term)}")
        # It says how many it has found when it has sorted them.
        page.wait_for_selector("#search-results > .search-summary >> text=/found \\d+ page|not match/")
        results = page.locator("#search-results ul.search > li > a")
        first = (results.first.get_attribute("href") or "") if results.count() else ""
        if first.partition("?")[0].partition("#")[0] != f"{wanted}.html":
            yield f"search for {term!r}: {first or 'nothing'} is first, not {wanted}"


def _is_cut(request: Request) -> bool:
    """Whether the next page was opened while this was under way, as happens to an icon."""
    return request.failure == "net::ERR_ABORTED"


def _show(page: Page, name: str) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.screenshot(path=BUILT / "screens" / f"{name}-{scheme}.png")
    page.emulate_media(color_scheme="light")


if __name__ == "__main__":
    sys.exit(main())
