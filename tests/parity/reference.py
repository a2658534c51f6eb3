"""What the PyTorch reference implementation computes for a case, live or from golden files.

Live needs torch and transformers (the `parity` extra). All numbers are float32.
`python -m tests.parity.reference` writes the golden files anew.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.parity.cases import CASES, ParityCase
from tests.parity.tensors import random_tensors

GOLDEN_DIR = Path(__file__).parent.parent / "golden" / "parity"
LIVE = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))

_SKETCH_VECTORS = 16


@dataclasses.dataclass(frozen=True)
class ReferenceRun:
    """What one forward and backward pass of the reference produces."""

    hidden: np.ndarray  # residual stream after each layer, [layers, batch, seq, hidden]
    router_logits: np.ndarray  # [layers, batch, seq, classes]
    classes: np.ndarray  # chosen classes, the skip class among them, [layers, batch, seq]
    logits: np.ndarray  # [batch, seq, vocab]
    loss: float  # mean next-token cross entropy
    gradient_sketches: dict[str, np.ndarray]  # by tensor name, see `sketch`


def sketch(name: str, gradient: np.ndarray) -> np.ndarray:
    """Projections of a tensor on fixed random sign vectors, and its norm last.

    The root mean square of the differences between two tensors' projections estimates the norm of
    the tensors' difference, so sketches stand in for gradients that are too big to keep.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    flat = gradient.astype(np.float64).ravel()
    signs = rng.integers(0, 2, (_SKETCH_VECTORS, flat.size)) * 2.0 - 1.0
    return np.append(signs @ flat, np.linalg.norm(flat)).astype(np.float32)


def sketch_distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Estimated norm of the difference of two sketched tensors, over the second one's norm."""
    difference = np.sqrt(np.mean(np.square(ours[:-1] - theirs[:-1])))
    return float(difference / theirs[-1])


def build(case: ParityCase) -> Any:
    """The reference model holding the case's random tensors."""
    import torch
    from transformers import ZayaConfig, ZayaForCausalLM

    config = ZayaConfig(**case.reference_config(), attn_implementation="eager")
    model = ZayaForCausalLM(config)
    model.set_experts_implementation("eager")
    tensors = {name: torch.from_numpy(array) for name, array in random_tensors(case).items()}
    if case.model.tie_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors, strict=True)
    return model.float().eval()


def live_run(case: ParityCase) -> ReferenceRun:
    """Forward and backward of the reference on the case's tokens."""
    import torch

    model = build(case)
    tokens = torch.from_numpy(case.tokens()).long()
    hidden: list[Any] = []
    router_logits: list[Any] = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda m, i, output: hidden.append(output[0].detach()))
        layer.mlp.gate.register_forward_hook(
            lambda m, i, output: router_logits.append(output[0].detach())
        )
    output = model(tokens, labels=tokens, use_cache=False)
    output.loss.backward()
    # [layers, batch * seq, classes] -> [layers, batch, seq, classes]
    scores = torch.stack(router_logits).reshape(len(hidden), *tokens.shape, -1)
    biases = torch.stack([layer.mlp.gate.balancing_biases for layer in model.model.layers])
    classes = (scores.softmax(-1) + biases[:, None, None, :]).argmax(-1)
    return ReferenceRun(
        hidden=torch.stack(hidden).numpy(),
        router_logits=scores.numpy(),
        classes=classes.numpy(),
        logits=output.logits.detach().numpy(),
        loss=float(output.loss.detach()),
        gradient_sketches={
            name: sketch(name, parameter.grad.numpy())
            for name, parameter in model.named_parameters()
        },
    )


def golden_run(case: ParityCase) -> ReferenceRun:
    """The results that were written by `python -m tests.parity.reference`."""
    with np.load(GOLDEN_DIR / f"{case.name}.npz") as stored:
        arrays = dict(stored)
    prefix = "gradient:"
    sketches = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
    fields = {n: a for n, a in arrays.items() if not n.startswith(prefix)}
    fields["loss"] = float(fields["loss"])
    return ReferenceRun(gradient_sketches=sketches, **fields)


def write_golden() -> None:
    """Writes every case's live results as compressed numpy files."""
    GOLDEN_DIR.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        run = live_run(case)
        arrays = {
            field.name: np.asarray(getattr(run, field.name))
            for field in dataclasses.fields(run)
            if field.name != "gradient_sketches"
        }
        arrays["loss"] = np.float32(run.loss)
        arrays["classes"] = run.classes.astype(np.uint8)
        sketches = {f"gradient:{n}": s for n, s in run.gradient_sketches.items()}
        np.savez_compressed(GOLDEN_DIR / f"{case.name}.npz", **arrays, **sketches)
        sys.stdout.write(f"{case.name}: loss {run.loss:.6f}\n")


if __name__ == "__main__":
    write_golden()
