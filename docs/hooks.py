"""MkDocs hooks: publish the Markdown files outside `docs/`, and the files that pages link to.

Links in the sources are relative paths within the repository, so that they also work there. On the site,
links to pages that `PUBLISHED` moves lead to their new paths, and links to other files in the repository lead
to copies below `files/`. Links to folders become text.
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
    "prompts/README.md": "guides/prompts.md",
}
"""Paths on the site of pages outside `docs/`."""
_SOURCES = {page: source for source, page in PUBLISHED.items()}
_LINK = re.compile(r"\[(?P<text>[^\]\n]*)\]\((?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCED = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PUBLISHED.items():
        files.append(File.generated(config, page, content=(TOP / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    path = page.file.src_uri
    folder = posixpath.dirname(_SOURCES.get(path, f"docs/{path}"))

    def convert(match: re.Match[str]) -> str:
        if "://" in match["path"] or match["path"].startswith("mailto:"):
            return match[0]
        target = posixpath.normpath(posixpath.join(folder, match["path"]))
        if not (TOP / target).exists():
            return match[0]  # MkDocs reports it
        on_site = PUBLISHED.get(target, os.path.relpath(target, "docs"))
        if target == "README.md":
            on_site = "index.md"
        if files.get_file_from_path(on_site) is None:
            if (TOP / target).is_dir():
                return match["text"] if match["text"].startswith("`") else f"`{target}`"
            on_site = f"files/{target}.txt"
            if files.get_file_from_path(on_site) is None:
                files.append(File.generated(config, on_site, content=(TOP / target).read_text("utf-8")))
        link = posixpath.relpath(on_site, posixpath.dirname(path) or ".")
        return f"[{match['text']}]({link}{match['anchor'] or ''})"

    parts = _FENCED.split(markdown)
    return "".join(part if n % 2 else _LINK.sub(convert, part) for n, part in enumerate(parts))
