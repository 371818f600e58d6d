"""Block attention residuals: the bookkeeping of blocks by hand, and their limits."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest
import torch

from k3lab.residual.block_attnres import BlockAttnRes, BlockAttnResSettings
from k3lab.residual.full_attnres import FullAttnRes, FullAttnResSettings

F64 = torch.float64


def scalar(value: float, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.full((1, 1, 1), value, dtype=dtype)


def build(block_layers: int, sublayers: int, hidden_size: int = 1, eps: float = 1e-30) -> BlockAttnRes:
    return BlockAttnRes(BlockAttnResSettings(block_layers=block_layers), sublayers, hidden_size, eps).double()


def source_values(residual: BlockAttnRes, outputs: list[float]) -> list[list[float]]:
    stream, seen = residual.start(scalar(10)), []
    for i, output in enumerate(outputs):
        seen.append([s.item() for s in residual.sources(stream, i)])
        stream = residual.write(stream, i, scalar(output))
    return [*seen, [s.item() for s in residual.sources(stream, len(outputs))]]


def test_sources_by_hand() -> None:
    # Blocks of one decoder layer. The embedding 10 is a block of its own and never part of a sum.
    assert source_values(build(1, 4), [1, -3, 4, 2]) == [
        [10],
        [10, 1],  # inside the first block: its sum so far
        [10, -2],  # a block's first sublayer: finished blocks alone
        [10, -2, 4],
        [10, -2, 6],  # the output mix
    ]


def test_the_last_block_is_shorter_when_layers_are_left_over() -> None:
    assert source_values(build(2, 6), [1, 2, 3, 4, 5, 6]) == [
        [10],
        [10, 1],
        [10, 3],
        [10, 6],
        [10, 10],
        [10, 10, 5],
        [10, 10, 11],
    ]


@pytest.mark.parametrize("layers", range(1, 8))
@pytest.mark.parametrize("block_layers", range(1, 9))
def test_number_of_sources(layers: int, block_layers: int) -> None:
    seen = source_values(build(block_layers, 2 * layers), [1.0] * (2 * layers))
    assert len(seen[-1]) == (layers - 1) // block_layers + 2
    assert max(map(len, seen)) == len(seen[-1])


def test_zero_queries_weigh_sources_equally() -> None:
    residual = build(1, 4, 8, eps=1e-5)
    stream = residual.start(torch.randn(2, 3, 8, dtype=F64))
    for i in range(4):
        weights = residual.source_weights(stream, i)
        n = len(residual.sources(stream, i))
        assert torch.equal(weights, torch.full((n, 2, 3), 1 / n, dtype=F64))
        mean = torch.stack(residual.sources(stream, i)).mean(0)
        torch.testing.assert_close(residual.mixture(stream, i), mean)
        stream = residual.write(stream, i, torch.randn(2, 3, 8, dtype=F64))


def test_the_first_sublayer_reads_the_plain_norm_bitwise() -> None:
    residual = BlockAttnRes(BlockAttnResSettings(), 4, 16, 1e-5)
    residual.norms[0].weight.data.uniform_(0.5, 2)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 3, 16).to(dtype)
        residual.to(dtype)
        expected = torch.nn.functional.rms_norm(x, (16,), residual.norms[0].weight, 1e-5)
        assert torch.equal(residual.read(residual.start(x), 0), expected)


def test_blocks_of_one_sublayer_are_full_attention() -> None:
    torch.manual_seed(0)
    full = FullAttnRes(FullAttnResSettings(), 6, 8, 1e-5).double()
    for p in full.parameters():
        p.data = torch.randn_like(p)
    block = build(1, 6, 8, eps=1e-5)
    block.load_state_dict(full.state_dict())
    block.block_sublayers = 1
    x = torch.randn(2, 3, 8, dtype=F64)
    a, b = full.start(x), block.start(x)
    for i in range(6):
        read = full.read(a, i)
        assert torch.equal(read, block.read(b, i))
        a, b = full.write(a, i, read.sin()), block.write(b, i, read.sin())
    assert torch.equal(full.finish(a), block.finish(b))


def test_one_block_attends_to_the_embedding_and_the_running_sum() -> None:
    assert source_values(build(9, 4), [1, 2, 3, 4]) == [[10], [10, 1], [10, 3], [10, 6], [10, 10]]


def test_finished_blocks_never_change() -> None:
    def digest(x: torch.Tensor) -> str:
        return hashlib.sha256(x.detach().numpy().tobytes()).hexdigest()

    torch.manual_seed(0)
    residual = build(1, 8, 4, eps=1e-5)
    stream = residual.start(torch.randn(2, 3, 4, dtype=F64))
    committed = [digest(stream.blocks[0])]
    for i in range(8):
        stream = residual.write(stream, i, residual.read(stream, i) * 2)
        committed += [digest(b) for b in stream.blocks[len(committed) :]]
    assert [digest(b) for b in stream.blocks] == committed
    assert len(committed) == 5


def test_partial_sums_are_kept_not_rebuilt() -> None:
    residual = build(2, 4)
    one = residual.write(residual.start(scalar(0, torch.bfloat16)), 0, scalar(1, torch.bfloat16))
    two = residual.write(one, 1, scalar(256, torch.bfloat16))
    assert two.partial_BTD.item() == 256  # 257 does not exist in bf16
    assert one.partial_BTD.item() == 1


def test_a_model_of_one_block_is_warned_about() -> None:
    config = SimpleNamespace(model=SimpleNamespace(layers=4))
    assert BlockAttnResSettings(block_layers=2).warnings(config) == []
    (line,) = BlockAttnResSettings(block_layers=4).warnings(config)
    assert "residual.block_layers=4" in line


def test_settings_refuse_an_empty_block() -> None:
    with pytest.raises(ValueError, match="block_layers=0"):
        BlockAttnResSettings(block_layers=0)
