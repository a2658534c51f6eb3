"""The one error of this room, without anything heavy to import."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint cannot be written, found or used. The message names the path and the mend."""


def reason_of(error: Exception) -> str:
    """What the system or a library complained about, in one line without the path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).strip()
    return text.splitlines()[0] if text else repr(error)
