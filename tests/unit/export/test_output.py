"""The output folder tells complete exports from interrupted ones."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from graphrag_ray.base.errors import UsageError
from graphrag_ray.export.output import EXPORT_JSON, open_output
from graphrag_ray.store.files import Store

ABOUT = {"format": "csv", "snapshot": 3}
NAMES = ("a.csv", "b.csv", "tables/")


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return Store(str(tmp_path / "out"))
    return Store(f"memory://{tmp_path.name}-{id(tmp_path)}")


def note(store: Store) -> dict[str, object]:
    return orjson.loads(store.read(EXPORT_JSON))


def files(store: Store) -> list[str]:
    return [info.path for info in store.list()]


def export(store: Store, *names: str, overwrite: bool = False, breaks: bool = False) -> None:
    with open_output(store, ABOUT, NAMES, overwrite=overwrite) as out:
        for name in names:
            with out.file(name) as local:
                local.write_text(name)
        with out.folder("tables", last="z-last") as local:
            (local / "t" / "z-last").mkdir(parents=True)
            (local / "t" / "z-last" / "one").write_text("1")
            (local / "t" / "two").write_text("2")
        if breaks:
            raise RuntimeError("the lights went out")


def test_export_json_lists_every_file(store: Store):
    export(store, "a.csv", "b.csv")
    assert files(store) == ["a.csv", "b.csv", EXPORT_JSON, "tables/t/two", "tables/t/z-last/one"]
    assert store.read("a.csv") == b"a.csv"
    assert note(store) == {
        **ABOUT,
        "complete": True,
        "rows": {},
        "files": ["a.csv", "b.csv", "tables/t/two", "tables/t/z-last/one"],
    }


def test_an_interrupted_export_is_marked_as_incomplete(store: Store):
    with pytest.raises(RuntimeError):
        export(store, "a.csv", breaks=True)
    written = ["a.csv", "tables/t/two", "tables/t/z-last/one"]
    assert note(store) == {**ABOUT, "complete": False, "files": written}
    with pytest.raises(UsageError, match=r"an incomplete export of snapshot 3 as csv"):
        export(store, "a.csv")


def test_an_incomplete_file_does_not_appear(store: Store):
    def breaks() -> None:
        with open_output(store, ABOUT, NAMES, overwrite=False) as out, out.file("a.csv") as local:
            local.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        breaks()
    assert files(store) == [EXPORT_JSON]


def test_a_folder_with_files_is_refused_and_left_alone(store: Store):
    store.write("mine.txt", b"mine")
    store.write("photo.jpg", b"mine")
    with pytest.raises(UsageError, match=r"is not empty: it contains mine.txt and 1 more.*--overwrite"):
        export(store, "a.csv")
    assert files(store) == ["mine.txt", "photo.jpg"]


def test_overwriting_removes_only_files_of_earlier_exports(store: Store):
    export(store, "a.csv", "b.csv")
    for name in ("mine.txt", "folder/a.csv", "tables.txt"):
        store.write(name, b"x")
    export(store, "a.csv", overwrite=True)
    assert files(store) == [
        "a.csv", EXPORT_JSON, "folder/a.csv", "mine.txt", "tables.txt", "tables/t/two", "tables/t/z-last/one",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["b.csv", "tables/mine", EXPORT_JSON])
@pytest.mark.parametrize("exported", [False, True])
def test_a_file_that_no_export_wrote_is_never_replaced(store: Store, name: str, exported: bool):
    if exported:
        export(store, "a.csv")
    store.write(name, b'{"mine": 1}')
    before = files(store)
    with pytest.raises(
        UsageError, match=rf"contains {name}.* according to export\.json\. Choose another folder"
    ):
        export(store, "a.csv", "b.csv", overwrite=True)
    assert files(store) == before and store.read(name) == b'{"mine": 1}'


@pytest.mark.parametrize("operation", ["write", "upload", "delete"])
@pytest.mark.parametrize("moment", range(6))
def test_an_export_killed_at_any_moment_is_replaced_by_the_next(
    store: Store, operation: str, moment: int, monkeypatch: pytest.MonkeyPatch
):
    export(store, "a.csv")
    store.write("mine.txt", b"mine")
    real, left = getattr(Store, operation), [moment]

    def counted(self: Store, *given: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(self, *given)

    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(Store, operation, counted)
        export(store, "a.csv", "b.csv", overwrite=True)
    export(store, "b.csv", overwrite=True)
    assert files(store) == ["b.csv", EXPORT_JSON, "mine.txt", "tables/t/two", "tables/t/z-last/one"]
    assert note(store)["complete"] is True


def test_an_export_json_from_another_program_is_not_an_export(store: Store):
    for content in (b"[1]", b"no JSON", b'{"x": 1}'):
        store.write(EXPORT_JSON, content)
        with pytest.raises(UsageError, match=r"it contains export\.json"):
            export(store)


def test_temporary_files_of_a_killed_export_are_removed_by_the_next(tmp_path: Path):
    store = Store(str(tmp_path / "out"))
    left = tmp_path / "out" / ".tmp-export-killed" / "folder"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    with pytest.raises(UsageError):
        export(store, "a.csv")
    export(store, "a.csv", overwrite=True)
    assert not [p for p in (tmp_path / "out").iterdir() if p.name.startswith(".tmp")]
