"""Programs that attack: every one is contained, gets the right verdict and leaves nothing."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from zaya_jax.rl import sandbox as sandbox_module
from zaya_jax.rl import sandbox_command
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sandbox import Sandbox, SandboxError, Verdict
from zaya_jax.rl.sandbox_command import Limits

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap (apt-get install bubblewrap)"
)
# Generous in wall time: the machine may be busy. CPU time is what busy programs run out of.
LIMITS = Limits(
    wall_seconds=60.0,
    cpu_seconds=1,
    memory_bytes=256 * 2**20,
    processes=8,
    file_bytes=2**20,
    output_bytes=100_000,
    open_files=32,
)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(LIMITS)


def processes() -> set[str]:
    """Processes that run our sandboxes' programs; started by root, those of other tests differ."""
    first = sandbox_command.user_ids.range_start()
    ours = range(first, first + sandbox_command.user_ids.most)
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line, owner = (entry / "cmdline").read_bytes(), entry.stat().st_uid
        except OSError:
            continue  # it has just ended
        if b"/program/main.py" in line and (os.getuid() != 0 or owner in ours):
            found.add(entry.name)
    return found


@pytest.fixture(autouse=True)
def no_residue() -> object:
    """Nothing that a program started outlives it."""
    before = processes()
    yield None
    deadline = time.monotonic() + 5
    while (left := processes() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@needs_bubblewrap
def test_a_program_reads_stdin_and_writes_both_streams(sandbox: Sandbox) -> None:
    outcome = sandbox.run(
        "import sys; print(sys.stdin.read()[::-1]); print('e', file=sys.stderr)", b"abc"
    )
    assert (outcome.verdict, outcome.stdout, outcome.stderr) == (Verdict.OK, b"cba\n", b"e\n")


@needs_bubblewrap
@pytest.mark.parametrize(
    ("source", "verdict", "exit_code"),
    [
        ("import sys; sys.exit(3)", Verdict.FAILED, 3),
        ("1 / 0", Verdict.FAILED, 1),
        ("def (", Verdict.FAILED, 1),
        ("import os; os.abort()", Verdict.CRASHED, 128 + signal.SIGABRT),
        ("import ctypes; ctypes.string_at(0)", Verdict.CRASHED, 128 + signal.SIGSEGV),
        ("while True: pass", Verdict.TIMEOUT, 128 + signal.SIGXCPU),
        (
            "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
            Verdict.CRASHED,  # by the hard limit
            128 + signal.SIGKILL,
        ),
    ],
)
def test_how_a_program_ends_decides_the_verdict(
    sandbox: Sandbox, source: str, verdict: Verdict, exit_code: int
) -> None:
    outcome = sandbox.run(source)
    assert (outcome.verdict, outcome.exit_code) == (verdict, exit_code)


@needs_bubblewrap
def test_sleepers_end_at_the_wall_clock_limit() -> None:
    quick = Sandbox(Limits(wall_seconds=1.0))
    for source in (
        "import time; time.sleep(1000)",
        "import os; os.close(0); os.close(1); os.close(2)\nimport time; time.sleep(1000)",
        'import os\nif os.fork(): __import__("time").sleep(1000)',
    ):
        outcome = quick.run(source)
        assert outcome.verdict is Verdict.TIMEOUT
        assert outcome.seconds < 10


@needs_bubblewrap
def test_a_fork_bomb_hits_the_limit_on_processes(sandbox: Sandbox) -> None:
    source = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(100)
        made += 1
except OSError:
    print(made)
"""
    outcome = sandbox.run(source)
    assert outcome.verdict is Verdict.OK
    assert 0 < int(outcome.stdout) < LIMITS.processes
    exponential = sandbox.run(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    )
    assert exponential.verdict in (Verdict.TIMEOUT, Verdict.CRASHED)


@needs_bubblewrap
def test_memory_files_and_descriptors_run_out(sandbox: Sandbox) -> None:
    memory = sandbox.run("x = []\nwhile True: x.append(bytearray(2**24))")
    assert b"MemoryError" in memory.stderr
    one_file = sandbox.run("open('/tmp/x', 'wb').write(bytes(2**21))")
    assert one_file.exit_code in (1, 128 + signal.SIGXFSZ)
    many = "for i in range(9): open(f'/tmp/{i}', 'wb').write(bytes(2**18))"
    assert b"No space left" in sandbox.run(many).stderr
    assert (
        b"Too many open files" in sandbox.run("x = [open('/dev/null') for _ in range(99)]").stderr
    )
    raised = "import resource as r; r.setrlimit(r.RLIMIT_AS, (2**40, 2**40))"
    assert sandbox.run(raised).verdict is Verdict.FAILED


@needs_bubblewrap
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_output_flood_is_cut(sandbox: Sandbox, stream: str) -> None:
    outcome = sandbox.run(f"import sys\nwhile True: sys.{stream}.write('x' * 4096)")
    assert outcome.verdict is Verdict.OUTPUT_LIMIT
    assert len(outcome.stdout) + len(outcome.stderr) == LIMITS.output_bytes


@needs_bubblewrap
@pytest.mark.parametrize(
    "source",
    [
        "open('/etc/passwd').read()",
        "import os; os.listdir('/etc')",
        "import os; os.listdir('/root')",
        "import os; os.listdir('/home')",
        f"open({os.path.abspath(__file__)!r}).read()",
        "open('/proc/1/environ', 'rb').read()",
        "open('/proc/1/mem', 'r+b').read(1)",
        "import os; os.environ['ZAYA_SECRET']",
        "open('/usr/x', 'w')",
        "open('/program/x', 'w')",
        "open('/program/main.py', 'w')",
        "open('/x', 'w')",
        "open('/dev/x', 'w')",
        "import os; os.symlink('/etc/passwd', '/tmp/a'); open('/tmp/a').read()",
        "import os; os.symlink('/', '/tmp/b'); os.listdir('/tmp/b/../etc')",
        "import os; os.link('/usr/bin/env', '/tmp/c'); open('/tmp/c', 'a')",
        "import os; os.chroot('/tmp')",
        "import os; os.setuid(0)",
        "import os; os.kill(1, 0); raise OSError",  # pid 1 is the sandbox's own
        "import os; os.kill(PARENT, 9)",
        "import socket; socket.create_connection(('127.0.0.1', 22), 2)",
        "import socket; socket.create_connection(('1.1.1.1', 53), 2)",
        "import socket; socket.getaddrinfo('example.org', 80)",
        "import socket; socket.socket(socket.AF_UNIX).connect('/run/x')",
        "import os; os.close(0); open('/dev/tty').read()",
    ],
)
def test_nothing_outside_can_be_reached(
    sandbox: Sandbox, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZAYA_SECRET", "known to the parent only")
    outcome = sandbox.run(source.replace("PARENT", str(os.getpid())))
    assert outcome.verdict is Verdict.FAILED, outcome
    assert outcome.stdout == b""


@needs_bubblewrap
def test_in_a_user_namespace_only_tmp_can_be_written(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module.os, "getuid", lambda: 1_000)  # as if not started by root
    for place in ("/x", "/dev/x", "/dev/shm/x", "/program/x", "/usr/x", "/proc/x"):
        outcome = sandbox.run(f"open({place!r}, 'w')")
        assert (outcome.verdict, outcome.stdout) == (Verdict.FAILED, b""), place
    written = "open('/tmp/x', 'w').write('x'); open('/dev/null', 'w').write('x'); print(1)"
    assert sandbox.run(written).stdout == b"1\n"


@needs_bubblewrap
def test_descriptors_of_the_parent_are_not_inherited(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)
        outcome = sandbox.run("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))")
    assert outcome.stdout == b"[0, 1, 2, 3]\n"  # 3: the listing itself


@needs_bubblewrap
def test_tracing_another_process_of_the_machine_is_impossible(sandbox: Sandbox) -> None:
    source = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print([libc.ptrace(16, pid, 0, 0) for pid in ({os.getpid()}, {os.getppid()})])
"""
    assert sandbox.run(source).stdout == b"[-1, -1]\n"


@needs_bubblewrap
def test_children_left_behind_die_with_the_program(sandbox: Sandbox) -> None:
    source = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
print("parent ends")
"""
    outcome = sandbox.run(source)  # `no_residue` looks for the grandchild
    assert (outcome.verdict, outcome.stdout) == (Verdict.OK, b"parent ends\n")
    assert outcome.seconds < 30


@needs_bubblewrap
def test_zombies_run_out_of_processes_and_leave_none_behind(sandbox: Sandbox) -> None:
    source = """
import os
made = 0
try:
    while True:
        if os.fork() == 0:
            os._exit(0)  # never waited for
        made += 1
except OSError:
    print(made)
"""
    outcome = sandbox.run(source)
    assert outcome.verdict is Verdict.OK
    assert 0 < int(outcome.stdout) < LIMITS.processes


@needs_bubblewrap
@pytest.mark.parametrize("target", ["-1", "os.getppid()", "1"])
def test_signals_reach_nobody_but_the_program(sandbox: Sandbox, target: str) -> None:
    source = f"""
import os, signal
try: os.kill({target}, signal.SIGKILL)
except OSError: pass
print(1)
"""
    outcome = sandbox.run(source)  # and we are still here
    assert (outcome.verdict, outcome.stdout) == (Verdict.OK, b"1\n")
    own = sandbox.run("import os, signal; os.killpg(0, signal.SIGKILL)")
    assert own.verdict is Verdict.CRASHED


@needs_bubblewrap
def test_a_program_that_stops_itself_ends_at_the_wall_clock_limit() -> None:
    stopped = Sandbox(Limits(wall_seconds=1.0)).run(
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    )
    assert stopped.verdict is Verdict.TIMEOUT


@needs_bubblewrap
def test_several_processes_have_the_memory_of_as_many_and_no_more(sandbox: Sandbox) -> None:
    source = """
import os
for _ in range(3):
    if os.fork() == 0:
        break
try:
    bytearray(2**29)
except MemoryError:
    os.write(1, b"x")
while True:
    try: os.wait()
    except ChildProcessError: break
"""
    assert sandbox.run(source).stdout == b"x" * 4


@needs_bubblewrap
def test_programs_leave_nothing_for_the_next_one(sandbox: Sandbox) -> None:
    sandbox.run("open('/tmp/json.py', 'w').write('raise SystemExit(9)')")
    outcome = sandbox.run("import os, json; print(os.listdir('/tmp'))")
    assert (outcome.verdict, outcome.stdout) == (Verdict.OK, b"[]\n")


@needs_bubblewrap
def test_a_poisoned_module_hurts_only_itself(sandbox: Sandbox) -> None:
    source = """
import sys
open('/tmp/statistics.py', 'w').write('print("poisoned")')
sys.path.insert(0, '/tmp')
import statistics
"""
    assert sandbox.run(source).stdout == b"poisoned\n"
    assert sandbox.run("import statistics; print(statistics.mean([1]))").stdout == b"1\n"


@needs_bubblewrap
def test_stdin_ends_and_an_unread_one_does_not_block(sandbox: Sandbox) -> None:
    outcome = sandbox.run(
        "import sys; print(len(sys.stdin.read()), sys.stdin.read() == '')", b"x" * 300_000
    )
    assert outcome.stdout == b"300000 True\n"
    assert sandbox.run("print(1)", b"x" * 10**6).stdout == b"1\n"
    assert sandbox.run("import os; os.close(0); print(1)", b"x" * 10**6).stdout == b"1\n"
    assert sandbox.run("print(input() == '')", b"").verdict is Verdict.FAILED  # EOFError


@needs_bubblewrap
def test_packages_are_shown_read_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "shown_module.py").write_text("VALUE = 7")
    tmp_path.chmod(0o755)
    with_packages = Sandbox(LIMITS, packages=[tmp_path])
    assert with_packages.run("import shown_module; print(shown_module.VALUE)").stdout == b"7\n"
    assert with_packages.run("open('/packages/x', 'w')").verdict is Verdict.FAILED
    assert with_packages.run("open('/packages/0/x', 'w')").verdict is Verdict.FAILED
    assert Sandbox(LIMITS).run("import shown_module").verdict is Verdict.FAILED


@needs_bubblewrap
def test_many_programs_keep_their_order_and_their_own_limits(sandbox: Sandbox) -> None:
    # Each holds most of the processes it may have; side by side they would exceed a shared limit.
    source = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        time.sleep(100)
print(input())
"""
    outcomes = sandbox.run_many([(source, b"%d" % i) for i in range(6)], workers=6)
    assert [o.stdout for o in outcomes] == [b"%d\n" % i for i in range(6)]


def test_without_bubblewrap_programs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_command.shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match=r"need bwrap, .*or pass unsafe=True"):
        Sandbox()


def test_the_unsafe_way_keeps_limits_and_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    find = shutil.which
    monkeypatch.setattr(
        sandbox_command.shutil, "which", lambda n: None if n == "bwrap" else find(n)
    )
    monkeypatch.setenv("ZAYA_SECRET", "known to the parent only")
    unsafe = Sandbox(LIMITS, unsafe=True)
    assert not unsafe.isolated
    assert unsafe.run("print(input())", b"7").stdout == b"7\n"
    assert unsafe.run("while True: pass").verdict is Verdict.TIMEOUT
    assert unsafe.run("import os; os.environ['ZAYA_SECRET']").verdict is Verdict.FAILED
    started = "import os, time\nif os.fork() == 0: time.sleep(1000)\nprint(1)"
    assert unsafe.run(started).stdout == b"1\n"


@needs_bubblewrap
def test_a_sandbox_that_cannot_start_is_our_error_not_the_programs(tmp_path: Path) -> None:
    broken = Sandbox(LIMITS, packages=[tmp_path / "missing"])
    with pytest.raises(SandboxError, match=r"could not set up a sandbox: bwrap: .*missing"):
        broken.run("print(1)")


def test_limits_must_be_positive() -> None:
    with pytest.raises(RLError, match="processes=0"):
        Limits(processes=0)
