"""The comparison with other tools: missing tools are skipped, and measurements are reported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import side_by_side
from processes import Totals
from side_by_side import (
    Measured,
    built_by_peer,
    built_by_us,
    choose,
    details,
    environment,
    first_files,
    main,
    table,
)

STATS = {
    "seconds": 9.5,
    "requests": 200,
    "total": {"prompt_tokens": 123456, "completion_tokens": 7890},
    "by_kind": {"extract": {"requests": 180}, "embeddings": {"requests": 20}},
    "in_flight": {"mean": 20.25, "peak": 25},
    "answered_twice": {"extra_answers": 3},
}


def _venv(venvs: Path, name: str) -> None:
    python = venvs / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()


def _corpus(folder: Path, n: int) -> Path:
    folder.mkdir()
    for i in range(n):
        (folder / f"{i:02}.txt").write_text(f"Text {i}")
    return folder


def test_missing_tools_are_skipped_with_install_instructions(tmp_path: Path) -> None:
    _venv(tmp_path, "lightrag")
    there, absent = choose([], tmp_path)
    assert [p.name for p in there] == ["lightrag"]
    assert [text.split(" ")[0] for text in absent] == ["graphrag", "nano-graphrag"]
    assert f"{tmp_path}/graphrag/bin/pip install graphrag==" in absent[0]


def test_only_requested_tools_are_run_or_reported_missing(tmp_path: Path) -> None:
    _venv(tmp_path, "lightrag")
    assert choose(["ours"], tmp_path) == ([], [])
    there, absent = choose(["lightrag", "graphrag"], tmp_path)
    assert [p.name for p in there] == ["lightrag"]
    assert len(absent) == 1


def test_runner_continues_without_missing_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run(tool: str, command: object, built: object, options: object, timeout_s: float) -> Measured:
        ran.append(tool)
        return Measured(tool, Totals(), STATS, {})

    monkeypatch.setattr(side_by_side, "run", run)
    _venv(tmp_path / "venvs", "nano-graphrag")
    corpus = _corpus(tmp_path / "corpus", 3)
    assert main([str(corpus), "--venvs", str(tmp_path / "venvs"), "--work", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert ran == ["nano-graphrag", "ours"]
    assert "graphrag is skipped" in printed
    assert "lightrag is skipped" in printed
    assert "| tool | nano-graphrag | ours |" in printed


def test_first_files_in_sorted_order_are_used(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path / "corpus", 12)
    (corpus / "00.md").write_text("no")
    assert first_files(corpus, 3, tmp_path / "out") == 3
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["00.txt", "01.txt", "02.txt"]


def test_table_has_a_column_per_tool() -> None:
    totals = Totals(wall_s=12.0, exit_code=0, cpu_s={"driver": 1.5, "worker": 2.5})
    lines = table(
        [Measured("a", totals, STATS, {"entities": 7, "version": "1.0"}), Measured("b", totals, STATS, {})]
    )
    cells = {
        c[0]: c[1:] for line in lines.split("\n") if (c := [x.strip() for x in line.strip("|").split("|")])
    }
    assert cells["tool"] == ["a", "b"]
    assert cells["version"] == ["1.0", ""]
    assert cells["CPU s"] == ["4.0", "4.0"]
    assert cells["CPU ms per request"] == ["20", "20"]
    assert cells["of these chat"] == ["180", "180"]
    assert cells["prompt tokens"] == ["123,456", "123,456"]
    assert cells["entities"] == ["7", "–"]


def test_requests_are_counted_by_kind_and_cpu_by_process() -> None:
    told = details(Measured("a", Totals(cpu_s={"driver": 1.5, "raylet": 0.25}), STATS, {}))
    assert told == "a: requests: extract 180, embeddings 20; CPU s: driver 1.5, raylet 0.2"


def test_index_sizes_are_parsed_from_output() -> None:
    ours = {"snapshot": 1, "counts": {"text_units": 118, "entities": 9, "reports": 2}}
    assert built_by_peer('INFO: x\nbuilt {"entities": 7}\n') == {"entities": 7}
    assert built_by_peer("Traceback …") == {}
    assert built_by_us("a warning\n" + json.dumps(ours, indent=2))["chunks"] == 118
    assert built_by_us("graphrag-ray: no") == {}


def test_peers_get_neither_our_keys_nor_our_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-real-key")
    monkeypatch.setenv("PYTHONPATH", "/ours")
    env = environment(False, "http://127.0.0.1:1/v1")
    assert env["OPENAI_API_KEY"] == "none"
    assert env["OPENAI_BASE_URL"] == "http://127.0.0.1:1/v1"
    assert "PYTHONPATH" not in env
    assert "OPENAI_API_KEY" not in environment(True, "")


HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("started", child.pid, flush=True)
time.sleep(600)
"""

MEASURES = """
import json, sys
from dataclasses import asdict
from processes import measure
totals, text = measure([sys.executable, sys.argv[1]], lambda line: None, timeout_s=2.0)
print(json.dumps(asdict(totals) | {"text": text}))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_hanging_tool_is_killed_with_its_children_and_reported(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    # Use a separate process, because adopting orphans cannot be undone.
    command = [sys.executable, "-c", MEASURES, str(tmp_path / "hangs.py")]
    folder = Path(side_by_side.__file__).parent
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    child = Path("/proc") / found.pop("text").split()[1] / "cmdline"
    assert not child.exists() or "sleep(600)" not in child.read_text()
    totals = Totals(**found)
    assert totals.timed_out
    assert "| exit code | timed out |" in table([Measured("a", totals, STATS, {})])
