"""Greedy text is that of the PyTorch implementation, which pads prompts of a batch on the left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.inference.models import tiny_case, tiny_variables
from tests.inference.test_engine import SETTINGS
from tests.parity.reference import LIVE, build
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import Request, SamplingParams

pytestmark = pytest.mark.skipif(not LIVE, reason="needs torch and transformers")

NEW = 12


def reference_tokens(model: Any, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    import torch

    longest = max(map(len, prompts))
    padded = np.zeros((len(prompts), longest), np.int64)
    mask = np.zeros_like(padded)
    for row, prompt in enumerate(prompts):
        padded[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    with torch.no_grad():
        output = model.generate(
            torch.from_numpy(padded),
            attention_mask=torch.from_numpy(mask),
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
        )
    return output[:, longest:].tolist()


@pytest.mark.parametrize("seed", [2, 9])
@pytest.mark.parametrize("lengths", [(11, 11), (3, 17, 9)], ids=["unpadded", "left-padded"])
def test_greedy_text_is_the_references(seed: int, lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    prompts = [tuple(rng.integers(0, 48, length).tolist()) for length in lengths]
    engine = Engine(tiny_case().model, tiny_variables(seed), settings=SETTINGS)
    sampling = SamplingParams(max_tokens=NEW, temperature=0.0)
    completions = engine.generate([Request(prompt, sampling) for prompt in prompts])
    expected = reference_tokens(build(tiny_case(seed)), prompts)
    assert [completion.tokens for completion in completions] == expected
