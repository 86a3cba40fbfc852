"""MkDocs hooks: publish the Markdown files outside `docs/` and adjust links.

Links in the sources are relative paths within the repository, so that they also work there. On the site, a
link to a page that `PUBLISHED` moves points to its new place, and a link to a file that the site lacks
becomes text.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TOP = Path(__file__).parents[1]
PUBLISHED = {
    "ARCHITECTURE.md": "concepts/architecture.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "SECURITY.md": "contributing/security.md",
    "benchmarks/README.md": "contributing/benchmarks.md",
    "benchmarks/RESULTS.md": "reference/measurements.md",
    "cluster/README.md": "guides/deployment.md",
}
"""Where files outside `docs/` appear on the site."""
_SOURCES = {page: source for source, page in PUBLISHED.items()}
_LINK = re.compile(r"\[(?P<text>[^\]\n]*)\]\((?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCED = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PUBLISHED.items():
        files.append(File.generated(config, page, content=(TOP / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    at = page.file.src_uri
    folder = posixpath.dirname(_SOURCES.get(at, f"docs/{at}"))

    def on_site(match: re.Match[str]) -> str:
        if "://" in match["path"] or match["path"].startswith("mailto:"):
            return match[0]
        target = posixpath.normpath(posixpath.join(folder, match["path"]))
        if not (TOP / target).exists():
            return match[0]  # MkDocs reports it
        on_site = PUBLISHED.get(target, os.path.relpath(target, "docs"))
        if target == "README.md":
            on_site = "index.md"
        if files.get_file_from_path(on_site) is None:
            return match["text"] if match["text"].startswith("`") else f"`{target}`"
        link = posixpath.relpath(on_site, posixpath.dirname(at) or ".")
        return f"[{match['text']}]({link}{match['anchor'] or ''})"

    parts = _FENCED.split(markdown)
    return "".join(part if at % 2 else _LINK.sub(on_site, part) for at, part in enumerate(parts))
