"""Exported adapters in the PEFT library, on the model in transformers: the logits of our merge."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.test_adapters import save_adapters
from tests.checkpoint.test_run_export import save_run
from tests.checkpoint.test_transformers_export import load_strictly, release_tensors
from tests.parity import reference
from tests.parity.cases import CASE_BY_NAME
from zaya_jax.checkpoint.convert import convert
from zaya_jax.checkpoint.layouts import LAYOUTS, variables_from_tensors
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.checkpoint.peft import export_peft
from zaya_jax.lora_settings import LoraConfig
from zaya_jax.model.transformer import Transformer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not reference.LIVE or importlib.util.find_spec("peft") is None,
        reason="needs torch, transformers and peft: the parity extra",
    ),
]
ALL = LoraConfig(rank=2, alpha=3.0, targets=("attention", "experts", "router"))


@pytest.mark.parametrize("targets", [ALL.targets, ("attention",), ("router",), ("experts",)])
def test_peft_computes_what_the_merged_model_computes(
    targets: tuple[str, ...], tmp_path: Path
) -> None:
    import torch
    from peft import PeftModel

    case = CASE_BY_NAME["base"]
    rules = LAYOUTS["transformers"].rules(case.model)
    variables = variables_from_tensors(rules, case.model, release_tensors(case))
    save_run(tmp_path / "base", variables, case.model, {})
    save_adapters(
        tmp_path / "run",
        tmp_path / "base",
        variables["params"],
        config=case.model,
        lora=dataclasses.replace(ALL, targets=targets),
        balancing=variables["balancing"],
    )
    export_peft(tmp_path / "run", tmp_path / "peft")
    convert(tmp_path / "base", tmp_path / "released")

    config, merged = load_checkpoint(tmp_path / "run")
    tokens = case.tokens()
    ours = np.asarray(Transformer(config).apply(merged, tokens).logits)
    base = load_strictly(tmp_path / "released")
    with torch.no_grad():
        ids = torch.from_numpy(np.array(tokens)).long()
        before = base(ids).logits.numpy()
        adapted = PeftModel.from_pretrained(base, tmp_path / "peft").eval()
        theirs = adapted(ids).logits.numpy()
    scale = np.abs(theirs).max()
    assert np.abs(theirs - before).max() > 0.02 * scale  # the adapters matter
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * scale)
