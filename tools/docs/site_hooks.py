"""Hooks of MkDocs for pages that read well on GitHub as they are: their links to files outside of `docs/` lead somewhere on the site, too.

The front page and CONTRIBUTING.md become pages. A link to a source file leads to a page that shows it. MkDocs loads this file by its path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {"README.md": "front-page.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages outside of `docs/`, and their names on the site."""
SHOWN = {".py": "python", ".mlir": "text", ".pdl": "text", ".ll": "llvm", ".toml": "toml", "": "text", ".json": "json", ".txt": "text"}
"""Ending of a source file -> the language of its page."""
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the root, and a page for each source file that a page links to."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=_links_from_docs((ROOT / name).read_text())))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    linked = {_target(page, name) for page, text in texts.items() for name, _ in _LINK.findall(_CODE.sub("", text))}
    for path in sorted(path for path in linked if _is_shown(path)):
        language, text = SHOWN[Path(path).suffix], (ROOT / path).read_text()
        content = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n````{language}\n{text}\n````\n"
        files.append(File.generated(config, _source_page(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text of a page with its links to source files turned to their pages."""
    here = os.path.dirname(page.file.src_uri)

    def turned(link: re.Match[str]) -> str:
        path = _target(page.file.src_uri, link[1])
        name = ROOT_PAGES.get(path) or (_source_page(path) if _is_shown(path) else None)
        return f"]({os.path.relpath(name, here or '.')}{link[2] or ''})" if name else link[0]

    return _LINK.sub(turned, markdown)


def _target(page: str, name: str) -> str:
    """The file that a link of a page under `docs/` names, as a path from the root."""
    return os.path.normpath(os.path.join("docs", os.path.dirname(page), name))


def _links_from_docs(text: str) -> str:
    """The text of a page of the root with its links as a page under `docs/` would write them."""
    return _LINK.sub(lambda link: f"]({os.path.relpath(link[1], 'docs')}{link[2] or ''})", text).replace('src="docs/', 'src="')


def _is_shown(path: str) -> bool:
    return (ROOT / path).is_file() and Path(path).suffix in SHOWN


def _source_page(path: str) -> str:
    return f"source/{path}.md"
