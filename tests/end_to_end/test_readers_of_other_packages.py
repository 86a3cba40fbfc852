"""Indexes with a format that a third-party package reads, with that package and without it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from installed import install

from graphrag_ray import open_index


def book(path: Path, *pages: str) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as found:
        for n, text in enumerate(pages):
            page = f'<html xmlns="http://www.w3.org/1999/xhtml"><body><p>{text}</p></body></html>'
            found.writestr(f"{n}.xhtml", page)
    path.write_bytes(out.getvalue())


def test_without_its_reader_documents_are_kept_and_the_package_is_named(tmp_path: Path):
    site, source, root = tmp_path / "site", tmp_path / "input", tmp_path / "index"
    source.mkdir()
    (source / "a.txt").write_text("Alice met Bob in Vienna.", "utf-8")
    book(source / "b.epub", "Carol wrote to Dave in Rome.", "Erin sold the mill to Frank.")
    install(site)

    def index(*more: str) -> str:
        path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [
            sys.executable,
            "-m",
            "graphrag_ray.cli.command_line",
            "index",
            str(source),
            "--in-process",
        ]
        done = subprocess.run(
            [*command, "--root", str(root), *more],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert done.returncode in (0, 3), done.stderr
        return done.stderr

    def held() -> tuple[set[tuple[str, str]], list[str]]:
        found = open_index(str(root))
        documents = found.table("documents").select(["path", "row"]).to_pylist()
        failures = found.table("failures").to_pylist()
        return {(d["path"], d["row"]) for d in documents}, [f["error"] for f in failures]

    index()
    all_of_it = {("a.txt", ""), ("b.epub", "0.xhtml"), ("b.epub", "1.xhtml")}
    assert held() == (all_of_it, [])
    shutil.rmtree(site)
    (source / "c.txt").write_text("Grace thanked Heidi.", "utf-8")
    said = index()
    documents, (error,) = held()
    assert documents == all_of_it | {("c.txt", "")}
    assert error.startswith("no reader for .epub: install the package graphrag-ray-sample 1.0")
    assert "No reader for .epub: install the package graphrag-ray-sample 1.0" in said
    book(source / "b.epub", "Carol wrote to Dave in Paris.")
    index("--set", "chunking.size=300")
    assert held()[0] == documents and len(held()[1]) == 1
    install(site)
    assert "No reader" not in index("--allow-deletes")
    assert held() == ({("a.txt", ""), ("b.epub", "0.xhtml"), ("c.txt", "")}, [])
