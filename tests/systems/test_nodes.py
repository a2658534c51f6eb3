"""Jobs on several nodes: names, command lines, checks that leave nodes out, restarts elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from zaya_jax.config import ConfigError
from zaya_jax.systems.nodes import Cluster, node_names
from zaya_jax.systems.supervise import main

COMMAND = ["python", "-c", "print('a b')"]
# Stands for ssh: node "b" fails its check; whatever else is run says where, and then runs.
STAND_IN = """
import json, os, subprocess, sys
node, command = sys.argv[1], sys.argv[2:]
if "zaya_jax.systems.preflight" in command:
    faults = [{"device": 3, "check": "copy", "detail": "slow"}] if node == "b" else []
    print(json.dumps({"devices": 8, "faults": faults, "options": command[3:]}))
    sys.exit(bool(faults))
os.environ["NODE"] = node
os.execvp(command[0], command)
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b", ("a", "b")),
        ("gpu[01-03,7],login.x", ("gpu01", "gpu02", "gpu03", "gpu7", "login.x")),
        ("n[9-11]", ("n9", "n10", "n11")),
    ],
)
def test_names_are_read_as_slurm_writes_them(text: str, names: tuple[str, ...]):
    assert node_names(text) == names


def test_a_command_is_passed_as_words_or_quoted_for_a_shell():
    words = Cluster(("n",), ("srun", "-w{node}", "{command}")).words("n", COMMAND)
    assert words == ["srun", "-wn", *COMMAND]
    words = Cluster(("n",), ("ssh", "{node}", "cd /x && {command}")).words("n", COMMAND)
    assert words == ["ssh", "n", "cd /x && python -c 'print('\"'\"'a b'\"'\"')'"]


def test_processes_find_each_other_at_the_first_node():
    cluster = Cluster(("a", "b"), ("{command}",))
    first, second = cluster.commands(["a", "b"], ["job"], 0)
    assert first == ["job", "--coordinator=a:8476", "--processes=2", "--process-id=0"]
    assert second == ["job", "--coordinator=a:8476", "--processes=2", "--process-id=1"]
    assert cluster.commands(["b"], ["job"], 0) == [["job"]]
    assert "--coordinator=a:8477" in cluster.commands(["a", "b"], ["job"], 1)[0]


def _supervise(tmp_path: Path, job: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(STAND_IN)
    workdir = tmp_path / "run"
    status = main(
        [
            f"--on-node={sys.executable} {stand_in} {{node}} {{command}}",
            *("--backoff=0.01", "--patience=5", f"--workdir={workdir}", *options),
            *("--", sys.executable, "-c", job),
        ]
    )
    return status, [json.loads(line) for line in (workdir / "supervisor.jsonl").open()]


@pytest.fixture(autouse=True)
def _signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)


def test_a_node_that_fails_its_check_is_left_out_and_a_killed_job_starts_again(tmp_path: Path):
    job = f"""
import os, sys
from pathlib import Path
mark = Path({str(tmp_path / "mark")!r})
print(os.environ["NODE"], sys.argv[1:])
if os.environ["NODE"] == "c" and not mark.exists():
    mark.touch()
    os.kill(os.getpid(), 9)
"""
    options = ["--nodes=a,b,c,d", "--use=2", "--preflight=--least-tflops 600"]
    status, events = _supervise(tmp_path, job, *options)
    assert status == 0
    used = [event["nodes"] for event in events if event["event"] == "nodes"]
    assert used == [["a", "c"], ["a", "c"]]
    faulty = [one["node"] for one in events if one["event"] == "preflight" and one["faults"]]
    assert faulty == ["b", "b"]
    failures = [event for event in events if event["event"] == "failure"]
    assert [(one["failure"], one["process"]) for one in failures] == [("killed", 1)]
    log = (tmp_path / "run" / "logs" / "attempt-2-process-1.log").read_text()
    assert log.startswith("c ['--coordinator=a:8477', '--processes=2', '--process-id=1']")


def test_too_few_healthy_nodes_stop_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, events = _supervise(tmp_path, "", "--nodes=a,b", "--use=2", "--preflight")
    assert status == 1
    assert [one["event"] for one in events] == ["preflight", "preflight", "gave up", "end"]
    assert "1 of 2 nodes pass their check, 2 are needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes=a,a"], "must name nodes, each once"),
        (["--nodes=a[1-"], r"cannot read '\['"),
        (["--nodes=a[1-x]"], r"cannot read"),
        (["--nodes=a", "--use=2"], "--use=2: --nodes lists 1"),
        (["--nodes=a", "--processes=2"], "--processes=2: --nodes start one process each"),
        (["--nodes=a", "--on-node=ssh {node}"], r"must contain \{command\}"),
    ],
)
def test_bad_input_is_one_error_that_names_it(options: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        main(["--workdir=x", *options, "--", "true"])
