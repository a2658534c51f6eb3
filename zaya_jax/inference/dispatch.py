"""Weights and cache on their devices, and the runs of the compiled programs on them."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, UInt8

from zaya_jax.config import ModelConfig
from zaya_jax.inference.cache import empty_cache
from zaya_jax.inference.forward import NOWHERE
from zaya_jax.inference.mesh import LAYERS_THEN_ROWS, WHOLE, engine_mesh, place
from zaya_jax.inference.programs import Decoded, decode, prefill, restore
from zaya_jax.inference.sampling import Variant
from zaya_jax.inference.sequence import Sequence, cache_rows, decode_rows, sampling_rows
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.inference.weights import weights_from_variables


class Dispatcher:
    """Runs the programs on rows of sequences.

    Attributes:
      programs: names of those that have run, and so are compiled.
    """

    def __init__(
        self,
        config: ModelConfig,
        settings: EngineSettings,
        variables: dict[str, Any],
        allowed: Bool[np.ndarray, " vocab"],
        devices: Many[jax.Device] | None = None,
    ) -> None:
        """Allocates the cache, on as many devices as the settings say.

        Args:
          config: architecture.
          settings: sizes.
          variables: parameters and balancing biases; copied.
          allowed: tokens that may be drawn.
          devices: as for `engine_mesh`.

        Raises:
          ConfigError: when the settings do not fit the model or the devices.
        """
        self.programs: set[str] = set()
        self._config, self._settings = config, settings
        self._mesh = engine_mesh(config, settings, devices)
        self.load(variables)
        cache = empty_cache(config, settings.cache_shape(config))
        self._cache = place(cache, LAYERS_THEN_ROWS, self._mesh)
        self._allowed = place(jnp.asarray(allowed), WHOLE, self._mesh)

    @property
    def devices(self) -> set[jax.Device]:
        """Where weights and cache are."""
        arrays = jax.tree.leaves((self._weights, self._cache))
        return {device for array in arrays for device in array.devices()}

    def load(self, variables: dict[str, Any]) -> None:
        """Changes the weights."""
        bits = self._settings.expert_bits
        self._weights = weights_from_variables(self._config, variables, bits, self._mesh)

    def restore(self, sequence: Sequence, page: int) -> None:
        """Puts the state at the end of a page into the sequence's slot."""
        slots, pages = np.full((2, self._settings.mesh_data), NOWHERE, np.int32)
        slots[sequence.part], pages[sequence.part] = sequence.slot, page
        self._cache = restore(self._mesh, self._cache, slots, pages)

    def prefill(
        self, rows: Many[Sequence | None], lengths: Many[int], table: int, bucket: int
    ) -> UInt8[np.ndarray, "all_layers rows seq"]:
        """Caches the next tokens of each row's sequence; returns the routers' classes.

        Args:
          rows: as `parts.placed` lays them out.
          lengths: tokens of each row.
          table: pages that the program looks at.
          bucket: tokens that the program has room for.
        """
        tokens = np.zeros((len(rows), bucket), np.int32)
        for row, (sequence, length) in enumerate(zip(rows, lengths, strict=True)):
            if sequence is not None:
                tokens[row, :length] = sequence.tokens(sequence.cached, sequence.cached + length)
        sliding = self._settings.sliding_table(self._config, bucket)
        where = cache_rows(rows, lengths, table=table, sliding_table=sliding)
        self.programs.add(f"prefill {len(rows)}x{bucket} tokens, {table} pages")
        self._cache, routes = prefill(
            self._config, self._mesh, self._weights, self._cache, where, tokens
        )
        return np.asarray(routes)

    def decode(self, rows: Many[Sequence | None], table: int, variant: Variant) -> Decoded:
        """Draws some tokens of each row's sequence; `table` and `rows` as for `prefill`."""
        settings = self._settings
        sliding = settings.sliding_table(self._config, settings.decode_steps)
        sampling = sampling_rows(rows, self._config.vocab_size)
        extras = f"{sampling.seen is not None:d}{sampling.bias is not None:d}"
        self.programs.add(f"decode {len(rows)} rows, {table} pages, {variant}, {extras}")
        lengths = [int(sequence is not None) for sequence in rows]
        self._cache, decoded = decode(
            self._config,
            self._mesh,
            self._weights,
            self._cache,
            cache_rows(rows, lengths, table=table, sliding_table=sliding),
            decode_rows(rows),
            sampling,
            self._allowed,
            np.int32(settings.decode_steps),
            variant=variant,
            most_steps=settings.decode_steps,
        )
        return jax.device_get(decoded)
