"""The command lines that start a program in isolation."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from zaya_jax.rl.errors import RLError

PROGRAM = Path("/program/main.py")  # where the program lies inside
PYTHON_HOME = Path("/python")  # the Python installation inside, unless it is part of /usr
PACKAGES = Path("/packages")  # folders of packages, by number

# Runs a file as a script, with folders of packages, one a line, added to the search path.
_START = "import sys; sys.path += sys.argv[1].splitlines(); sys.argv = sys.argv[2:]; "
_START += "exec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'), {'__name__': '__main__'})"


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one program may use.

    Raises:
      RLError: on construction, for a limit that is not positive.
    """

    wall_seconds: float = 10.0  # from start to end, waiting included
    cpu_seconds: int = 5  # computing, each process
    memory_bytes: int = 512 * 2**20  # address space of each process
    processes: int = 16  # processes and threads at any time
    file_bytes: int = 16 * 2**20  # each file, and all files together
    output_bytes: int = 2**20  # stdout and stderr together
    open_files: int = 64  # descriptors of each process

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise RLError(f"sandbox: {field.name}={getattr(self, field.name)!r}: not positive")


class UserIds:
    """User ids for sandboxes started by root: one for each at a time, unlike all others'.

    The kernel counts the processes of a user id, so that sharing one would share the limit.
    """

    first = 2**30  # beyond every id that systems hand out
    most = 1_024  # sandboxes of one process at a time

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: set[int] = set()

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[int]:
        """An id that no other sandbox of this process has; processes have separate ranges."""
        base = self.range_start()
        with self._lock:
            user = next(base + i for i in range(self.most) if base + i not in self._used)
            self._used.add(user)
        try:
            yield user
        finally:
            with self._lock:
                self._used.discard(user)

    def range_start(self) -> int:
        """The lowest id that this process hands out; it has `most` of them."""
        return self.first + (os.getpid() % 2**20) * self.most


user_ids = UserIds()


def missing_tools() -> list[str]:
    """Programs this needs and cannot find."""
    needed = ["bwrap", "prlimit", *(["setpriv"] if os.getuid() == 0 else [])]
    return [name for name in needed if shutil.which(name) is None]


def bubblewrap_command(
    limits: Limits, program: int, status: int, user: int | None, packages: Sequence[Path]
) -> list[str]:
    """The whole command line, arguments of the program to follow.

    Args:
      limits: of the program.
      program: descriptor to read the program's text from.
      status: descriptor that bubblewrap writes its status to.
      user: id to run as, or None to run in a user namespace of our own id.
      packages: folders of Python packages to show.
    """
    words = ["bwrap", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    words += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--hostname", "sandbox"]
    if user is None:
        words += ["--unshare-user"]
    else:  # needed once, to change to the id; a change away from root drops them all
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    words += ["--json-status-fd", str(status)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # threads are limited
    if _is_mounted_elsewhere():  # its own libraries are looked for where they were built
        environment |= {"LD_LIBRARY_PATH": str(PYTHON_HOME / "lib")}
    for name, value in environment.items():
        words += ["--setenv", name, value]
    words += _mounts(limits, program, packages)
    if user is not None:
        words += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        words += ["--bounding-set=-all", "--inh-caps=-all"]
    words += [*_limited(limits), f"--nproc={limits.processes}:{limits.processes}", "--"]
    python = _inner_python()
    shown = "\n".join(str(PACKAGES / str(i)) for i in range(len(packages)))
    return [*words, str(python), "-I", "-S", "-B", "-c", _START, shown, str(PROGRAM)]


def unprotected_command(limits: Limits, program: Path, packages: Sequence[Path]) -> list[str]:
    """The same without bubblewrap: limits where the tool for them exists, no isolation."""
    limit = [*_limited(limits), "--"] if shutil.which("prlimit") else []
    python = Path(sys.executable).resolve()
    shown = "\n".join(map(str, packages))
    return [*limit, str(python), "-I", "-S", "-B", "-c", _START, shown, str(program)]


def _limited(limits: Limits) -> list[str]:
    """Soft limits with hard ones at or right above them: a program cannot raise its own."""
    return [
        shutil.which("prlimit") or "prlimit",
        f"--cpu={limits.cpu_seconds}:{limits.cpu_seconds + 1}",
        f"--as={limits.memory_bytes}:{limits.memory_bytes}",
        f"--fsize={limits.file_bytes}:{limits.file_bytes}",
        f"--nofile={limits.open_files}:{limits.open_files}",
        "--core=0:0",
    ]


def _mounts(limits: Limits, program: int, packages: Sequence[Path]) -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib64"):
        source = Path("/", name)
        if source.is_symlink():
            words += ["--symlink", os.readlink(source), str(source)]
        elif source.is_dir():
            words += ["--ro-bind", str(source), str(source)]
    if _is_mounted_elsewhere():
        words += ["--ro-bind", str(_python_home()), str(PYTHON_HOME)]
    words += ["--perms", "0755", "--dir", str(PACKAGES)]  # parents it makes itself are closed
    for number, folder in enumerate(packages):
        words += ["--ro-bind", str(folder.resolve()), str(PACKAGES / str(number))]
    words += ["--proc", "/proc", "--dev", "/dev"]
    words += ["--perms", "1777", "--size", str(limits.file_bytes), "--tmpfs", "/tmp"]
    words += ["--perms", "0755", "--dir", str(PROGRAM.parent)]
    words += ["--perms", "0444", "--ro-bind-data", str(program), str(PROGRAM)]
    # Whatever else bubblewrap made becomes read-only too: in a user namespace all of it is ours.
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]


def _python_home() -> Path:
    return Path(sys.base_prefix).resolve()


def _is_mounted_elsewhere() -> bool:
    """Whether Python is no part of /usr and so has another place inside."""
    return not _python_home().is_relative_to("/usr")


def _inner_python() -> Path:
    python = Path(sys.executable).resolve()
    if _is_mounted_elsewhere():
        return PYTHON_HOME / python.relative_to(_python_home())
    return python
