"""The errors of this part that a user can mend."""

from __future__ import annotations


class RLError(ValueError):
    """A setting, record or program of the RL stages breaks a rule; names it and the mend."""
