"""A plan as tables for people."""

from __future__ import annotations

from typing import Any

from zaya_jax.systems.command import print_table, readable_bytes
from zaya_jax.systems.mesh_search import mesh_name


def print_plan(facts: dict[str, Any]) -> None:
    """Prints everything of `plan.plan_facts`; the categories of the first mesh in full."""
    meshes = facts["meshes"]
    print(
        f"{facts['parameters']:,} parameters, {facts['tokens_per_step']:,} tokens a step, "
        f"{facts['training_flops_per_token'] / 1e9:.3f} GFLOP a token, "
        f"{facts['devices']:,} x {facts['hardware']}"
    )
    print_table(
        "\nmeshes; from the step with ideal products and hidden exchanges to the expected one",
        ("mesh", "memory", "fits", "step", "bound", "tokens/s", "MFU", "days"),
        [
            (
                mesh_name(one["mesh"]),
                readable_bytes(one["total_bytes"]),
                "yes" if one["fits"] else "no",
                f"{_range(one['step_seconds'], '.2f')} s",
                one["bound"],
                _range(one["tokens_per_second"], ",.3g", 1e6) + "M",
                _range(one["mfu"], ".1%"),
                _range(one["days"], ",.1f"),
            )
            for one in meshes
        ],
    )
    if facts["shortage"] is not None:
        print("\n" + _shortage(facts["shortage"]))
    first = meshes[0]
    print_table(
        f"\nmemory of one device: {mesh_name(first['mesh'])}",
        ("category", "bytes"),
        [
            (_CATEGORIES.get(name, name.replace("_", " ")), readable_bytes(size))
            for name, size in first["bytes"].items()
            if size or name not in _CATEGORIES
        ],
    )
    seconds = first["exchange_seconds"]
    print_table(
        "\nsent by one device in a step",
        ("axis", "bytes", "seconds"),
        [
            (axis, readable_bytes(size), f"{seconds[axis]:.3f}")
            for axis, size in first["sent_bytes"].items()
            if size
        ],
    )
    products = _range(first["products_seconds"], ".3f")
    print(f"\nmatrix products {products} s, memory {first['memory_seconds']:.3f} s")
    _print_storage(facts)
    if "compiled" in facts:
        _print_compiled(first, facts["compiled"])


# Shown only where there is something in them.
_CATEGORIES = {
    "host_optimizer": "on the host: optimizer",
    "host_activations": "on the host: activations",
}


def _shortage(shortage: dict[str, Any]) -> str:
    needed, room = shortage["needed_bytes"], shortage["room_bytes"]
    more = readable_bytes(needed - room)
    text = (
        f"it does not fit: a device needs {readable_bytes(needed)}, {more} more than the "
        f"{readable_bytes(room)} (90% of its memory) that a plan fills"
    )
    if shortage["changes"]:
        return "\n  ".join([f"{text}; any of these would do:", *shortage["changes"]])
    return (
        f"{text}; no setting makes it fit: take a smaller model, shorter sequences "
        "(--config.data.sequence_length), or hardware with more memory"
    )


def _print_storage(facts: dict[str, Any]) -> None:
    checkpoint, storage = facts["checkpoint"], facts["storage"]
    print(
        f"checkpoint {readable_bytes(checkpoint['bytes'])}, {checkpoint['seconds']:.1f} s with "
        f"{checkpoint['writers']} writers"
    )
    print(
        f"storage: {readable_bytes(storage['bytes_per_step'])} and {storage['pages_per_step']:,} "
        f"pages a step; {storage['reads_per_second']:,.0f} reads/s at sigma "
        f"{storage['scatter']:g} and {storage['step_seconds']:.2f} s a step; storage of "
        f"{storage['iops']:,.0f} reads/s is the bound below {storage['break_even_seconds']:.3f} s"
    )


_PLACES = {"cpu": "virtual devices", "gpu": "GPUs that need not be there"}


def _print_compiled(first: dict[str, Any], compiled: dict[str, Any]) -> None:
    found, expected = compiled["argument_bytes"], first["state_bytes"]
    is_gpu = compiled["backend"] == "gpu"
    planned = first["total_bytes"] - expected
    temporary = [("temporary", *_compared(compiled["temporary_bytes"], planned))] if is_gpu else []
    sent: dict[str, float] = {}
    for one in compiled["collectives"]:
        axes = "+".join(one["axes"])
        sent[axes] = sent.get(axes, 0.0) + one["bytes_sent"]
    print_table(
        f"\ncompiled over {_PLACES[compiled['backend']]}, beside the formulas",
        ("one device", "compiled", "formula", "difference"),
        [
            ("state and batch", *_compared(found, expected)),
            *temporary,
            *(
                (f"sent over {axes}", *_compared(size, first["sent_bytes"].get(axes, 0.0)))
                for axes, size in sorted(sent.items(), key=lambda pair: -pair[1])
            ),
        ],
    )
    if is_gpu:
        print(f"{compiled['hidden_share']:.0%} of these bytes are sent while there is other work")
    else:
        needed = readable_bytes(compiled["temporary_bytes"])
        print(f"temporary memory of the CPU program, which keeps attention's scores: {needed}")


def _compared(found: float, expected: float) -> tuple[str, str, str]:
    difference = f"{found / expected - 1:+.1%}" if expected else "-"
    return readable_bytes(found), readable_bytes(expected), difference


def _range(ends: list[float], form: str, unit: float = 1.0) -> str:
    return " to ".join(format(end / unit, form) for end in ends)
