"""Counters and gauges in Prometheus' text form."""

from __future__ import annotations

import collections
from collections.abc import Mapping

from zaya_jax.inference.request import Completion

_HELP = {
    "requests_total": ("counter", "Requests by status code."),
    "prompt_tokens_total": ("counter", "Prompt tokens of finished choices."),
    "completion_tokens_total": ("counter", "Drawn tokens of finished choices."),
    "cached_tokens_total": ("counter", "Prompt tokens that came from the prefix cache."),
    "running": ("gauge", "Sequences in a slot."),
    "waiting": ("gauge", "Sequences that wait for a slot."),
    "pages": ("gauge", "Pages of the cache."),
    "pages_in_use": ("gauge", "Pages that sequences or remembered prefixes hold."),
    "remembered_pages": ("gauge", "Pages in the prefix cache."),
    "weights_version": ("gauge", "Version of the weights."),
}


class Metrics:
    """Counts what the server does."""

    def __init__(self) -> None:
        self.statuses: collections.Counter[int] = collections.Counter()
        self.tokens: collections.Counter[str] = collections.Counter()

    def finished(self, completion: Completion) -> None:
        """Counts the tokens of a choice."""
        self.tokens["prompt_tokens_total"] += len(completion.prompt)
        self.tokens["completion_tokens_total"] += len(completion.tokens)
        self.tokens["cached_tokens_total"] += completion.cached_tokens

    def text(self, statistics: Mapping[str, int]) -> str:
        """Everything, with the engine's own statistics."""
        lines = []
        for name, (kind, help_text) in _HELP.items():
            full = f"zaya_{name}"
            lines += [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}"]
            if name == "requests_total":
                lines += [
                    f'{full}{{status="{status}"}} {count}'
                    for status, count in sorted(self.statuses.items())
                ]
            else:
                lines.append(f"{full} {self.tokens.get(name, statistics.get(name, 0))}")
        return "\n".join(lines) + "\n"
