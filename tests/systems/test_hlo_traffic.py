"""Exchanges are read from HLO text with their groups, sizes and loops."""

from __future__ import annotations

import pytest

from zaya_jax.systems.hlo_traffic import Collective, collectives, hidden_share

MESH = {"data": 2, "fsdp": 4}
PROGRAM = """HloModule step

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body.1 (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %gathered = f32[64]{0} all-gather(%part), channel_id=1, replica_groups=GROUPS, dimensions={0}
}

%condition.1 (state: (s32[], f32[8])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %loop = (s32[], f32[8]) while(%init), condition=%condition.1, body=%body.1, backend_config=FIVE
  %summed = (f32[10]{0}, f32[2,3]{1,0}) all-reduce(%x), replica_groups={{0,4},{1,5}}, to_apply=%add
  %alone = f32[100]{0} all-reduce(%x), replica_groups={{0},{1},{2},{3}}, to_apply=%add
  %everyone = f32[] all-reduce(%x), replica_groups={}, to_apply=%add
  %halo = bf16[3,2]{1,0} collective-permute(%x), source_target_pairs={{0,1},{1,2},{4,5}}
}
""".replace("FIVE", '{"known_trip_count":{"n":"5"}}')


@pytest.mark.parametrize(
    "groups",
    [
        "{{0,1,2,3},{4,5,6,7}}",
        "[2,4]<=[8]",
        "mesh['axis_0'=2,'axis_1'=4] {'axis_1'}",
    ],
)
def test_every_way_to_write_groups_is_read(groups: str):
    found = collectives(PROGRAM.replace("GROUPS", groups), MESH)
    assert found == [
        Collective("all-gather", ("fsdp",), 5, 5 * 3 / 4 * 64 * 4),
        Collective("all-reduce", ("data",), 1, 2 / 2 * 16 * 4),
        Collective("collective-permute", ("fsdp",), 1, 12.0),
        Collective("all-reduce", ("data", "fsdp"), 1, 2 * 7 / 8 * 4),
    ]


@pytest.mark.parametrize(
    "groups",
    [
        "[4,2]<=[2,4]T(1,0)",
        "mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}",
    ],
)
def test_transposed_groups_belong_to_the_outer_axis(groups: str):
    found = collectives(PROGRAM.replace("GROUPS", groups), MESH)
    assert Collective("all-gather", ("data",), 5, 5 * 1 / 2 * 64 * 4) in found


def test_groups_in_no_known_form_are_an_error():
    with pytest.raises(ValueError, match="cannot read the groups"):
        collectives(PROGRAM.replace("GROUPS", "??"), MESH)


_ASYNCHRONOUS = """
ENTRY %main (p: f32[8]) -> f32[64] {
  %p = f32[8]{0} parameter(0)
  %gather-start = ((f32[8]{0}), f32[64]{0}) all-gather-start(%p), replica_groups={{0,1,2,3,4,5,6,7}}
  %product = f32[8]{0} custom-call(%p), custom_call_target="__cublas$gemm"
  %gather-done = f32[64]{0} all-gather-done(%gather-start)
  %sum-start = f32[64]{0} all-reduce-start(%gather-done), replica_groups={{0,1,2,3,4,5,6,7}}
  ROOT %sum-done = f32[64]{0} all-reduce-done(%sum-start)
}
"""


def test_of_an_asynchronous_exchange_the_results_count_and_what_runs_meanwhile():
    mesh = {"data": 8}
    found = {one.kind: one.bytes_sent for one in collectives(_ASYNCHRONOUS, mesh)}
    gathered, summed = 7 / 8 * 256, 2 * 7 / 8 * 256
    assert found == {"all-gather": gathered, "all-reduce": summed}
    assert hidden_share(_ASYNCHRONOUS, mesh) == pytest.approx(gathered / (gathered + summed))
