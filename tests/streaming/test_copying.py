"""Copies that stay in their thread."""

from __future__ import annotations

import pytest
import torch

from streaming.copying import clear, write

TYPES = [torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.bool, torch.complex64]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.real if tensor.is_complex() else tensor.float()


@pytest.mark.parametrize("dtype", [*TYPES, torch.float8_e4m3fn], ids=str)
def test_any_type_and_layout(dtype: torch.dtype) -> None:
    """What is written is equal, whatever the type and the strides of either side, and nothing else changes."""
    value = (torch.arange(60) % 2).reshape(3, 4, 5).to(dtype)
    for given in (value, value.transpose(0, 2).contiguous().transpose(0, 2)):
        for whole in (torch.ones(2, 3, 4, 6), torch.ones(2, 4, 6, 3).permute(0, 3, 1, 2)):
            places = whole.to(dtype)
            write(places[1, :, :, :5], given)
            assert torch.equal(_plain(places[1, :, :, :5]), _plain(value))
            assert torch.equal(_plain(places[0]), torch.ones(3, 4, 6))
            assert torch.equal(_plain(places[1, :, :, 5]), torch.ones(3, 4))


@pytest.mark.parametrize("dtype", [*TYPES, torch.float8_e4m3fn], ids=str)
def test_clear(dtype: torch.dtype) -> None:
    """All is zero then, also of a part with gaps."""
    whole = torch.ones(4, 6).to(dtype)
    part = whole[:, 1:3]
    assert clear(part) is part
    assert _plain(part).abs().sum() == 0
    assert _plain(whole).sum() == 16


def test_values_that_torch_computes() -> None:
    """Conjugated and negated views, and values with gradients, are written as they read."""
    value = torch.tensor([1 + 2j, 3 - 1j])
    place = torch.zeros(2, dtype=torch.complex64)
    write(place, value.conj())
    assert place.tolist() == [1 - 2j, 3 + 1j]
    write(place, value.conj().imag.to(torch.complex64))
    assert place.tolist() == [-2, 1]
    numbers = torch.zeros(2)
    write(numbers, value.conj().imag)
    assert numbers.tolist() == [-2, 1]
    write(numbers, torch.ones(2, requires_grad=True).detach())
    assert numbers.tolist() == [1, 1]
