# SPDX-License-Identifier: Apache-2.0
"""A rank's pool: rows come back as they were stored, stay with their sequence when it moves, and never leave it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sparkpair import kernels
from sparkpair.cache.forms import RowForm
from sparkpair.cache.pool import Place, PlacedRows, Plane, row_bytes
from sparkpair.cache.tail import Tail

from tests.engine import devices
from tests.engine.devices import DEVICE


def plane(form: RowForm, rows: int = 64, width: int = 8) -> Plane:
    return Plane(rows, width, form, torch.float32, DEVICE)


def numbered(count: int, width: int = 8) -> torch.Tensor:
    return devices.arange(float(count)).unsqueeze(1).expand(-1, width)


@pytest.mark.parametrize("form", ["fp32", "bf16", "fp8"])
def test_a_stored_row_takes_the_bytes_that_the_plan_counts(form: RowForm) -> None:
    made = plane(form, rows=10, width=512)
    assert made.nbytes == 10 * row_bytes(512, form)


def test_the_published_widths_take_the_published_bytes() -> None:
    assert [row_bytes(width, "fp8") for width in (512, 128)] == [528, 144]
    assert [row_bytes(width, "bf16") for width in (512, 128)] == [1024, 256]


@pytest.mark.parametrize(
    ("largest", "scale", "code"),
    # Powers of two, and numbers between them; what e4m3 cannot hold is rounded: 150 becomes 144.
    [(1.0, 2.0**-8, 256.0), (3.0, 2.0**-6, 192.0), (300.0, 2.0, 144.0), (256.0, 1.0, 256.0), (258.0, 2.0, 128.0)],
)
def test_the_scale_is_the_power_of_two_that_puts_the_largest_code_up_to_256(
    largest: float, scale: float, code: float
) -> None:
    row = devices.tensor([[largest, -largest / 2, 0.0, 0.0]])
    stored = kernels.encode_fp8_rows(row)
    assert stored[0, 4:8].view(torch.float32).item() == scale
    assert stored[0, :4].view(torch.float8_e4m3fn).float()[0].item() == code
    assert not stored[0, 8:].any()
    assert kernels.decode_fp8_rows(stored, torch.float32)[0, 0].item() == code * scale


def test_rows_of_zeros_and_of_the_smallest_and_largest_numbers_come_back_finite() -> None:
    rows = devices.tensor([[0.0] * 4, [1e-38] * 4, [3e38] * 4])
    stored = kernels.encode_fp8_rows(rows)
    assert stored[0, 4:8].view(torch.float32).item() == 2.0**-126
    back = kernels.decode_fp8_rows(stored, torch.float32)
    assert back.isfinite().all()
    assert not back[0].any()
    assert back[2, 0].item() == pytest.approx(3e38, rel=0.07)


@given(st.lists(st.floats(-(2.0**20), 2.0**20, width=32, allow_subnormal=False), min_size=8, max_size=8))
def test_an_fp8_row_is_as_near_as_eight_bits_can_be_and_storing_it_again_changes_nothing(values: list[float]) -> None:
    row = devices.tensor([values])
    once = kernels.decode_fp8_rows(kernels.encode_fp8_rows(row), torch.float32)
    largest = row.abs().max()
    # Half a step of three mantissa bits and the rounding to bf16, or half the least step next to the largest.
    assert ((once - row).abs() <= row.abs() * 0.067 + largest * 2.0**-17 + 1e-36).all()
    assert torch.equal(kernels.decode_fp8_rows(kernels.encode_fp8_rows(once), torch.float32), once)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 24))
def test_rows_arrive_whole_where_the_two_places_overlap(source: int, target: int, count: int) -> None:
    made = plane("fp32")
    rows = numbered(count)
    made.write(source, rows)
    made.copy(source, target, count)
    assert torch.equal(made.read(slice(target, target + count)), rows)


def test_a_sequence_finds_its_rows_after_its_place_has_moved_and_so_does_what_was_kept_of_it() -> None:
    made, place = plane("fp32"), Place(8, 16)
    rows = PlacedRows(made, place, 1)
    rows.append(numbered(10))
    kept = rows.keep(7)
    made.copy(8, 32, 10)
    place.base = 32
    assert torch.equal(rows.first(10), numbered(10))
    assert torch.equal(rows.at(devices.tensor([[3, 9]]))[0], numbered(10)[[3, 9]])
    rows.append(numbered(6))
    resumed = kept.resume(place)
    assert torch.equal(resumed.first(10), numbered(10))


def test_a_row_that_would_stand_in_another_extent_is_refused() -> None:
    rows = PlacedRows(plane("fp32"), Place(0, 16), 4)
    rows.append(numbered(4))
    with pytest.raises(RuntimeError, match="5 rows of 4 tokens do not fit into an extent of 16"):
        rows.append(numbered(1))


@given(st.lists(st.integers(1, 400), max_size=30), st.integers(1, 150))
def test_the_newest_rows_stay_in_memory_of_one_size(counts: list[int], most: int) -> None:
    tail = Tail(most, 1, torch.float32, DEVICE)
    size, total = tail.nbytes, 0
    for count in counts:
        tail.append(devices.arange(float(total), float(total + count)).unsqueeze(1))
        total += count
        assert tail.nbytes == size
        assert tail.rows.flatten().tolist() == list(range(max(0, total - most), total))
