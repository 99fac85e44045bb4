"""`python tests/tools/explore/pictures.py` makes the pictures of docs/howto/explore.md anew, with Chromium.

Look at each of them: text may run out of its box where no test sees it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import Chromium
from programs import block_case

from stepwell.tools.explore.main import explore

FOLDER = Path(__file__).resolve().parents[3] / "docs/howto/explore"
HEIGHT = 800
SOFTMAX = "[...document.querySelectorAll('.pane .line')].find(line => line.textContent.includes('weights = torch.softmax')).click()"
FUSION = "[...document.querySelectorAll('.passlist button.link')].find(one => one.textContent === 'contract-epilogue').click()"
PICTURES = [
    ("levels", 1280, "light", SOFTMAX), ("levels", 400, "dark", SOFTMAX),
    ("passes", 1280, "dark", FUSION), ("passes", 400, "light", FUSION),
    ("plan", 1280, "light", ""), ("plan", 400, "dark", ""), ("time", 1280, "dark", ""), ("time", 400, "light", ""),
]  # fmt: skip
"""View, width in pixels, colours, and what is done before."""
TITLES = {"plan": "why"}


def main() -> None:
    """Write every picture."""
    fn, *arguments = block_case()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "block.html")
        explore(fn, *arguments).write_html(page)
        browser = Chromium(Path(folder, "profile"))
        for view, width, colours, before in PICTURES:
            browser.open(page.as_uri(), width=width, height=HEIGHT, dark=colours == "dark")
            browser.value(f"document.getElementById('tab-{view}').click()")
            if before:
                browser.value(before)
            path = FOLDER / f"{TITLES.get(view, view)}-{width}-{colours}.webp"
            browser.picture(path)
            print(path)
        if wrong := browser.errors():
            sys.exit("\n".join(wrong))
        browser.close()


if __name__ == "__main__":
    main()
