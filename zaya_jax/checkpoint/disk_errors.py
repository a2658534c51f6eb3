"""What can be wrong with a folder that checkpoints are written to, in one readable line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from zaya_jax.checkpoint.error import CheckpointError


def check_writable(directory: Path, option: str = "--workdir") -> None:
    """Refuses a directory, which that option names, if it cannot be made or written to.

    It makes nothing.

    Raises:
      CheckpointError: names what is in the way.
    """
    ancestor = directory.absolute()
    while not os.path.lexists(ancestor):
        ancestor = ancestor.parent
    if not ancestor.is_dir():
        raise CheckpointError(
            f"cannot make {directory}: {ancestor} is not a folder; choose another {option}"
        )
    if not os.access(ancestor, os.W_OK | os.X_OK):
        raise CheckpointError(
            f"cannot write to {directory}: {ancestor} is not writable; choose another {option}"
        )


def write_error(path: Path, error: Exception, option: str = "--workdir") -> CheckpointError:
    """One readable line for whatever Orbax or the file system raised."""
    text = str(error)
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in text:
        reason = "no space left on the device"
    elif getattr(error, "errno", None) in (errno.EDQUOT, errno.EFBIG) or "File too large" in text:
        reason = "the disk quota or file size limit is reached"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = text.strip().splitlines()[0] if text.strip() else repr(error)
    return CheckpointError(
        f"cannot write {path}: {reason}. Checkpoints finished before are intact; make room or "
        f"choose another {option}, then run the same command again"
    )
