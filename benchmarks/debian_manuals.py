"""Make a corpus of passages from the manuals that Debian packages install.

    apt-get install manpages openssh-client man-db debconf
    python benchmarks/debian_manuals.py --output debian.jsonl
    graphrag-ray index debian.jsonl --root INDEX --build names \\
        --set input.id_column=id --set input.title_column=title
    python benchmarks/retrieval.py benchmarks/questions/debian_multi.jsonl --root INDEX

Formats the manual pages of PACKAGES with man(1) and cuts each section into passages of at most MAX_WORDS
words, if possible at the end of a sentence. Section NAME becomes part of the next one. The title of a passage
is that of its page, and its id consists of the page, the section and the number of the passage in it, for
example kill(1)/DESCRIPTION/1. Prints the number of pages and passages.

The questions were written for the packages of Debian 12 and are not for tuning. The texts are under the
licences of their packages and are not part of this repository.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGES = (
    *("manpages", "coreutils", "procps", "psmisc", "util-linux", "mount", "login", "passwd", "adduser"),
    *("openssh-client", "dpkg", "apt", "findutils", "grep", "sed", "tar", "gzip", "e2fsprogs", "kmod"),
    *("udev", "libc-bin", "man-db", "debconf", "init-system-helpers"),
)
MAX_WORDS = 180
FEWEST_WORDS = 12
"""Shorter remainders of a section are appended to the passage before them."""
LEFT_OUT = {
    "NAME",
    "SYNOPSIS",
    "COPYRIGHT",
    "AUTHOR",
    "AUTHORS",
    "REPORTING BUGS",
    "COLOPHON",
    "SEE ALSO",
    "AVAILABILITY",
}
_PAGE = re.compile(r"/usr/share/man/man\d/(?P<name>[^/]+)\.(?P<section>\d)\w*\.gz")


def pages_of(package: str) -> list[Path]:
    listed = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=False).stdout
    paths = (Path(line) for line in listed.splitlines() if _PAGE.fullmatch(line))
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def sections_of(page: Path) -> list[tuple[str, list[str]]]:
    """The title and the paragraphs of each section."""
    env = {**os.environ, "MANWIDTH": "1000", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    command = ["man", "--no-justification", "--no-hyphenation", "-P", "cat", str(page)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    sections: list[tuple[str, list[str]]] = []
    for paragraph in re.split(r"\n\s*\n", re.sub(r".\x08", "", text)):
        lines = paragraph.strip("\n").splitlines()
        if lines and re.match(r"[A-Z]", lines[0]) and "  " not in lines[0]:
            sections.append((lines.pop(0).strip(), []))
        if sections and lines:
            sections[-1][1].append(" ".join(" ".join(lines).split()))
    return sections


def passages_of(page: Path) -> Iterator[dict[str, str]]:
    match = _PAGE.fullmatch(str(page))
    assert match
    title = f"{match['name']}({match['section']})"
    purpose: list[str] = []
    for section, paragraphs in sections_of(page):
        if section == "NAME":
            purpose = paragraphs
        if section in LEFT_OUT:
            continue
        pieces: list[list[str]] = [[]]
        for word in " ".join([*purpose, *paragraphs]).split():
            pieces[-1].append(word)
            is_end = word.endswith((".", ":", ";")) and len(pieces[-1]) >= MAX_WORDS * 2 // 3
            if is_end or len(pieces[-1]) >= MAX_WORDS:
                pieces.append([])
        if len(pieces) > 1 and len(pieces[-1]) < FEWEST_WORDS:
            rest = pieces.pop()
            pieces[-1] += rest
        for number, words in enumerate(pieces, start=1):
            if words:
                purpose = []
                text = f"{title}, {section}\n{' '.join(words)}"
                yield {"id": f"{title}/{section}/{number}", "title": title, "text": text}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    pages = [page for package in PACKAGES for page in pages_of(package)]
    with ThreadPoolExecutor() as pool:
        passages = [p for made in pool.map(lambda page: list(passages_of(page)), pages) for p in made]
    repeated = [id_ for id_, n in Counter(p["id"] for p in passages).items() if n > 1]
    passages = [p for p in passages if p["id"] not in repeated]
    with options.output.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(passage, ensure_ascii=False) + "\n" for passage in passages)
    print(f"{len(pages)} pages, {len(passages)} passages")


if __name__ == "__main__":
    main()
