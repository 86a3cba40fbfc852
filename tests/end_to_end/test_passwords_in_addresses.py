"""Passwords and signatures in the address of INPUT are neither shown nor stored."""

from __future__ import annotations

import pytest
from web_server import serving
from world import Command, World, everything, model_options

PASSWORD = "correct-horse"
SIGNATURE = "0badc0de5ea1"
PAGE = b'<a href="alice.txt">1</a> <a href="gone.txt">2</a> <a href="more.txt?sig=0badc0de5ea1">3</a>'
TEXT = b"ALICE met BOB at the council."


def index(run: Command, world: World, url: str, *more: str) -> tuple[int, str]:
    done = run("index", url, "--root", world.root, *model_options(world), *more)
    return done.exit_code, done.output


def told_of(run: Command, world: World) -> str:
    """Everything that is shown and stored of an index."""
    shown = [run(command, "--root", world.root).output for command in ("status", "failures")]
    stored = [p.read_bytes().decode("latin-1") for p in sorted(world.root.rglob("*")) if p.is_file()]
    tables = str(everything(world.open())) if world.snapshots() else ""  # Stored files are compressed.
    return "\n".join([*shown, *stored, tables])


def test_a_password_in_the_address_of_input_is_neither_shown_nor_stored(run: Command, world: World):
    with serving({"/docs/": PAGE, "/docs/alice.txt": TEXT}) as web:
        url = f"http://me:{PASSWORD}@{web.host}/docs/*.txt"
        code, told = index(run, world, url, "--set", "run.max_failed_fraction=1.0")
        assert code == 3, told
        assert [d["path"] for d in world.table("documents")] == ["alice.txt"]
        failures = world.table("failures")
        assert [f["document"] for f in failures] == ["gone.txt"] and web.host in failures[0]["error"]
        web.files.clear()
        refused, why = index(run, world, url)
        assert refused == 2 and f"http://{web.host}/docs" in why
        assert PASSWORD not in told + why + told_of(run, world)


@pytest.mark.parametrize("files", [{}, {"/rows.jsonl": b"not a row"}, {"/rows.bin": TEXT}])
def test_errors_do_not_show_signatures(run: Command, world: World, files: dict[str, bytes]):
    with serving({"/docs/alice.txt": TEXT}) as web:
        assert index(run, world, f"http://{web.host}/docs/alice.txt")[0] == 0
        web.files = files
        name = min(files, default="/rows.jsonl")
        code, why = index(run, world, f"http://{web.host}{name}?X-Amz-Expires=9&X-Amz-Signature={SIGNATURE}")
        assert code == 2 and (web.host in why or "would delete" in why)
        assert SIGNATURE not in why + told_of(run, world)


def test_the_document_of_a_signed_address_is_named_after_its_file(run: Command, world: World):
    with serving({"/docs/alice.txt": TEXT}) as web:
        signed = f"http://{web.host}/docs/alice.txt?X-Amz-Credential=AK/eu/s3&X-Amz-Signature={SIGNATURE}"
        code, told = index(run, world, signed)
        assert code == 0 and [d["path"] for d in world.table("documents")] == ["alice.txt"]
        assert not index(run, world, signed.replace(SIGNATURE, "another"))[0]
        assert world.snapshots() == [1], "a new signature names the same document"
        assert SIGNATURE not in told + told_of(run, world)
