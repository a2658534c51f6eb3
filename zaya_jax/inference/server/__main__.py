"""Serves a model to OpenAI clients.

    python -m zaya_jax.inference.server --checkpoint DIR --port 8000

Speaks /v1/chat/completions, /v1/completions and /v1/models; /health and /metrics beside them. Binds
to this machine alone unless told otherwise. SIGTERM and Ctrl-C let accepted requests finish first.
Needs the `serve` extra.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from zaya_jax.config import ConfigError
from zaya_jax.inference.command import Parser, add_model_options, load_engine, run_command
from zaya_jax.inference.server.app import Server, ServerSettings
from zaya_jax.inference.service import EngineService
from zaya_jax.inference.settings import EngineSettings


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = Parser(prog="python -m zaya_jax.inference.server", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8_000, help="(8000)")
    parser.add_argument("--slots", type=int, default=16, help="choices at the same time (16)")
    parser.add_argument("--most-waiting", type=int, default=256, help="before 429 (256)")
    parser.add_argument("--model-name", help="default: the checkpoint folder's name")
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="clients must send the key in it"
    )
    parser.add_argument(
        "--warm-up", type=int, default=0, metavar="TOKENS", help="compile for such lengths first"
    )
    arguments = parser.parse_args(argv)
    settings = EngineSettings(
        slots=arguments.slots, cache_tokens=arguments.cache_tokens, **arguments.mesh
    )
    key = _read_key(arguments.api_key_file)
    engine, tokenizer = load_engine(arguments.checkpoint, arguments.tokenizer, settings)
    if arguments.warm_up:
        engine.warm_up(arguments.warm_up, say=lambda program: print(f"compiling: {program}"))
    name = arguments.model_name or os.path.basename(os.path.abspath(arguments.checkpoint))
    server_settings = ServerSettings(model=name, api_key=key, most_waiting=arguments.most_waiting)
    with EngineService(engine) as service:
        application = Server(service, tokenizer, server_settings).application()
        print(f"serving {name!r} on http://{arguments.host}:{arguments.port}/v1", flush=True)
        uvicorn.run(application, host=arguments.host, port=arguments.port, log_level="warning")
    return 0


def _read_key(path: Path | None) -> str | None:
    """From a file: command lines are seen by everyone on the machine."""
    if path is None:
        return None
    key = path.read_text(encoding="utf-8").strip()
    if not key:
        raise ConfigError(f"--api-key-file {path} is empty; put the key on its first line")
    return key


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
