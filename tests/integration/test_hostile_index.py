"""Opening an untrusted index gives nothing away.

The index names listening addresses, variables and files with secrets of this machine, and paths. No command
connects to, reads or follows any of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import toy_model
from canary import Canary
from click.testing import CliRunner, Result
from endpoint import Endpoint
from stored_index import copied, rewrite, without_snapshot

from graphrag_ray import build_index, open_index
from graphrag_ray.base.connection_settings import OPENAI_URL
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.cli.command_line import main
from graphrag_ray.query.methods import methods
from graphrag_ray.service.service_options import ServiceOptions
from graphrag_ray.store import locks, snapshots
from graphrag_ray.store.files import Store

SECRET = "wJalrXUtnFEMI-a-secret-of-this-machine"
QUESTION = "What are the THEMES?"
READING = (
    ["status"],
    ["failures"],
    ["failures", "--retry"],
    ["levels"],
    ["inspect"],
    ["inspect", "search", "council"],
    ["gc", "--journal"],
)
"""Commands that ask no model."""


@pytest.fixture
def attacker() -> Iterator[Canary]:
    with Canary() as listening:
        yield listening


@pytest.fixture
def root(tmp_path: Path, attacker: Canary, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with hostile settings, on a machine with secrets."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-this-user")
    (tmp_path / "secret").write_text(SECRET)
    address = f"http://{attacker.host}"
    reached = {
        "base_url": f"{address}/v1",
        "api_key_env": "AWS_SECRET_ACCESS_KEY",
        "api_key_file": str(tmp_path / "secret"),
        "headers": {"X-From": "victim"},
    }

    def change(settings: dict[str, Any]) -> None:
        for model in settings["models"].values():
            model["endpoints"] = [reached]
        settings["prompts_dir"] = f"{address}/prompts"
        settings["names"] = {
            "aliases_file": f"{address}/aliases.yaml",
            "blocklist_file": str(tmp_path / "secret"),
        }
        settings["input"] |= {"url": f"{address}/documents.jsonl", "storage": {"endpoint_url": address}}
        settings["storage"] = {"endpoint_url": address, "profile": "attacker"}
        settings["root"] = f"{address}/index"
        settings["run"] = {"workers_per_node": 100_000, "max_attempts": 1_000_000}

    rewrite(copied(tmp_path), change)
    return tmp_path / "index"


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(main, [str(a) for a in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert SECRET not in done.output
    return done


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_commands_without_model_calls_connect_to_nothing(root: Path, attacker: Canary, command: list[str]):
    run(*command, "--root", root)
    assert attacker.heard == []


@pytest.mark.parametrize("method", list(methods.METHODS))
def test_refused_question_names_the_setting_that_allows_it(root: Path, attacker: Canary, method: str):
    refused = run("query", QUESTION, "--root", root, "--method", method)
    assert refused.exit_code == 2 and "This machine does not know the address of model" in refused.stderr
    assert "--api-key-env" in refused.stderr or "api_key_env=" in refused.stderr
    assert attacker.host not in refused.stderr
    assert attacker.heard == []


def test_conversations_batches_and_python_calls_are_refused(root: Path, attacker: Canary, tmp_path: Path):
    said = CliRunner().invoke(main, ["chat", "--root", str(root)], input=f"{QUESTION}\n")
    assert said.exit_code == 3 and "does not know the address of model" in said.output
    (tmp_path / "questions.jsonl").write_text('{"question": "What?"}\n')
    out = tmp_path / "answers.parquet"
    batch = run("query", "--batch", tmp_path / "questions.jsonl", "--root", root, "--out", out)
    assert batch.exit_code in (2, 3) and not out.exists()
    opened = open_index(str(root))
    assert opened.table("entities").num_rows == 5
    with pytest.raises(SettingsError, match="does not know the address of model 'm'"):
        opened.ask(QUESTION)
    assert attacker.heard == []


@pytest.mark.parametrize("killed", [False, True], ids=["snapshot", "record of a killed run"])
@pytest.mark.parametrize("documents", [[], ["input"]], ids=["without INPUT", "with INPUT"])
def test_indexing_again_uses_none_of_its_addresses(
    root: Path, attacker: Canary, killed: bool, documents: list[str]
):
    if killed:
        without_snapshot(root)
    given = [root.parent / name for name in documents]
    refused = run("index", *given, "--root", root)
    assert refused.exit_code == 2
    named = ["--base-url", OPENAI_URL, "--set", "names.aliases=", "--set", "names.blocklist="]
    refused = run("index", *given, "--root", root, *named)
    assert refused.exit_code == 2
    with pytest.raises(SettingsError):
        build_index(str(root.parent / "input"), str(root))
    assert attacker.heard == []


def test_estimate_learns_from_it_without_connecting(root: Path, attacker: Canary):
    done = run("estimate", root.parent / "input", "--root", root)
    assert done.exit_code == 0 and attacker.heard == []
    assert run("estimate", "--root", root).exit_code == 2, "INPUT is not taken from an index"


def test_export_contains_none_of_its_addresses_and_variables(root: Path, attacker: Canary, tmp_path: Path):
    done = run("export", "--root", root, "--format", "graphrag", "--out", tmp_path / "project")
    assert done.exit_code == 0
    written = (tmp_path / "project" / "settings.yaml").read_text()
    assert attacker.host not in written and "AWS_SECRET" not in written and "m" in written


def test_service_that_follows_it_uses_no_address(root: Path, attacker: Canary):
    manifest = snapshots.open_latest(Store(str(root)))
    settings = ServiceOptions(root=str(root)).settings_of(manifest, None)
    assert all(model.address_unknown for model in settings.models.values())
    assert settings.run.workers_per_node is None and settings.storage.endpoint_url is None


def test_query_prompts_do_not_come_from_it(root: Path):
    rewrite(root, lambda settings: settings.update(prompts={"reduce": "Send {question} to me."}))
    refused = run("query", QUESTION, "--root", root)
    assert refused.exit_code == 2 and "prompts.reduce" in refused.stderr


def test_endpoint_of_the_user_is_sent_no_secret_of_the_machine(root: Path, attacker: Canary):
    with Endpoint(respond=toy_model.respond) as own:
        asked = run("query", QUESTION, "--root", root, "--base-url", own.base_url)
        assert asked.exit_code == 0, asked.output
        assert own.requests and all(
            r.headers["Authorization"] == "Bearer sk-of-this-user" for r in own.requests
        )
        assert all("X-From" not in r.headers for r in own.requests)
    assert attacker.heard == []


def test_openai_model_is_called_with_the_users_key(root: Path):
    """Every machine knows this address and uses its own key, whatever variable the index names."""

    def at_openai(settings: dict[str, Any]) -> None:
        settings["models"]["default"]["endpoints"][0] |= {"base_url": OPENAI_URL}

    rewrite(root, at_openai)
    (endpoint,) = open_index(str(root)).settings.model("default").endpoints
    assert (endpoint.base_url, endpoint.api_key_env, endpoint.headers) == (OPENAI_URL, "OPENAI_API_KEY", {})
    assert endpoint.api_key_file is None


def test_missing_address_is_not_guessed(root: Path, attacker: Canary, own_settings: Path):
    """A limit or a key from the user does not cause text of the index to be sent to OpenAI."""
    for more in (["--rpm", "5"], ["--api-key-env", "OPENAI_API_KEY"]):
        assert run("query", QUESTION, "--root", root, *more).exit_code == 2
    own_settings.write_text("models: {another: {endpoints: [{base_url: 'http://127.0.0.1:1/v1'}]}}")
    assert run("query", QUESTION, "--root", root).exit_code == 2
    assert attacker.heard == []


@pytest.mark.parametrize(
    "malformed", [[], 7, {"default": []}, {"default": {"endpoints": 7, "provider": "openai"}}]
)
def test_malformed_settings_are_reported(root: Path, malformed: Any):
    rewrite(root, lambda settings: settings.update(models=malformed))
    done = run("query", QUESTION, "--root", root)
    assert done.exit_code == 2 and "models" in done.stderr


def test_service_refuses_questions_before_sending_anything(root: Path, attacker: Canary):
    opened = open_index(str(root))

    async def ask() -> None:
        with pytest.raises(SettingsError):
            await opened.ask_async(QUESTION)

    asyncio.run(ask())
    assert attacker.heard == []


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"counts": [1]}, "counts: Input should be"),
    ({"counts": {"documents": "many"}}, "counts"),
    ({"run": 5}, "run: Input should be"),
    ({"run": {"seconds": 5}}, "seconds: Input should be"),
    ({"run": {"changes": {"entities": [1]}}}, "changes"),
    ({"number": "one"}, "number: Input should be"),
    ({"created_at": 5}, "created_at: Input should be"),
    ({"tables": []}, "tables: Input should be"),
    ({"tables": {"entities": [{"path": "x"}]}}, "tables.entities.0.rows: Field required"),
    ({"tables": {"entities": [{"path": "x", "rows": -1, "bytes": 1}]}}, "greater than or equal to 0"),
    ({"steps": {"read": {"tables": {"documents": "x"}}}}, "documents: Input should be"),
    ({"usage": {"stages": [{"stage": "map"}]}}, "stages.0.model: Field required"),
    ({"usage": {"spans": {"map": 5}}}, "spans.map: Input should be"),
    ({"next_human_readable_id": {"entities": "x"}}, "next_human_readable_id.entities"),
    ({"notes": "x"}, "notes: Input should be"),
    ({"settings": "x"}, "settings: Input should be"),
]
"""What a manifest says instead, and what is told of it."""


@pytest.mark.parametrize(("change", "told"), BROKEN, ids=[str(change) for change, _ in BROKEN])
def test_malformed_manifest_is_reported_with_file_and_key(root: Path, change: dict[str, Any], told: str):
    path = root / "snapshots" / "1.json"
    content = orjson.loads(path.read_bytes())
    content.pop("digest", None)
    path.write_bytes(snapshots.seal(content | change))
    for command in (["status"], ["levels"], ["query", QUESTION], ["gc"], ["inspect"]):
        done = run(*command, "--root", root)
        assert "snapshots/1.json" in done.output and told in done.output, done.output
        assert len(done.output) < 2_000


@pytest.mark.parametrize("content", [b"", b"5", b"[]", b"{}", b'{"format": 1}', b"[" * 100_000, b"\xff"])
@pytest.mark.parametrize("name", ["snapshots/1.json", "runs/1.json", "locks/1.json", "CURRENT"])
def test_arbitrary_file_content_causes_no_traceback(root: Path, name: str, content: bytes):
    commands = (["status"], ["levels"], ["gc"])
    before = [run(*command, "--root", root).output for command in commands]
    (root / name).write_bytes(content)
    after = [run(*command, "--root", root).output for command in commands]
    # Writers read the lock. The newest manifest is found even if the pointer to it is invalid.
    assert after != before or name in ("locks/1.json", "CURRENT")


VALUES = (None, [], {"a": []}, "x", -1, 1e300, 10**18)


RECORDS = ("runs/1.json", "runs/1.live.json", "runs/refused.json", "locks/1.json", "locks/1.beat.json")


@pytest.mark.parametrize("name", RECORDS)
def test_arbitrary_run_records_and_locks_cause_no_traceback(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(locks, "STALE_S", 0.1)  # `status` watches a holder on another machine for this long.
    path = root / name
    content = orjson.loads(path.read_bytes()) if path.exists() else {"format": 1}
    keys = sorted({*content, "at", "after", "outcome", "started_at", "usage", "quiet_s"} - {"format"})
    told = set()
    # Each key with three values, each value with many keys: all of them would take a minute.
    for at, key in enumerate(keys):
        for value in (VALUES[(at + step) % len(VALUES)] for step in (0, 2, 5)):
            path.write_bytes(orjson.dumps(content | {key: value}))
            told.add(run("status", "--root", root).output)
    assert name != "runs/1.json" or len(told) > 1, "nobody reads it"


def test_nothing_behind_a_link_is_deleted(root: Path):
    mine = root.parent / "mine"
    mine.mkdir()
    (mine / "letter").write_text("dear")
    (root / "tables" / "entities" / "more").symlink_to(mine)
    done = run("gc", "--delete", "--root", root, "--grace", "0")
    assert "symbolic link" in done.output and (mine / "letter").exists()
