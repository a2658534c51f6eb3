"""In bfloat16 engine and trainer round differently; with the engine's routes little is left."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.inference.models import TINY, prompt, tiny_variables
from tests.inference.test_engine import SETTINGS
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import Completion, Request, SamplingParams
from zaya_jax.model.transformer import Transformer

MODEL = TINY.replace(activation_dtype="bfloat16")


def trainer_log_probabilities(completion: Completion) -> np.ndarray:
    """Of the drawn tokens, by the full forward pass with the engine's routes; float32."""
    tokens = np.asarray([*completion.prompt, *completion.tokens[:-1]], np.int32)
    routes = completion.routes.T[:, None].astype(np.int32)
    apply = jax.jit(lambda own, t, r: Transformer(MODEL).apply(own, t, routes=r).logits[0])
    logits = apply(tiny_variables(), tokens[None], routes)
    predicting = jax.nn.log_softmax(logits.astype(jnp.float32))[len(completion.prompt) - 1 :]
    return np.asarray(predicting)[np.arange(len(completion.tokens)), completion.tokens]


@pytest.mark.slow
def test_sampler_and_trainer_agree_under_replay() -> None:
    """KL(sampler | trainer) by the estimator exp(d) - 1 - d, d = trainer's less sampler's log p."""
    engine = Engine(MODEL, tiny_variables(), settings=SETTINGS)
    requests = [
        Request(prompt(seed, 12), SamplingParams(max_tokens=48, seed=seed)) for seed in range(12)
    ]
    completions = engine.generate(requests)
    own = np.concatenate([completion.raw_log_probabilities for completion in completions])
    trainers = np.concatenate([trainer_log_probabilities(each) for each in completions])
    difference = trainers - own
    assert np.any(difference != 0)  # two programs, not one
    assert np.mean(np.exp(difference) - 1 - difference) <= 1e-4
