"""Two processes over gloo see what one process sees, with one collective for each kind of statistic."""

from __future__ import annotations

import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from k3lab.router.base import Router, end_of_global_batch
from tests.router.helpers import make, same, state, tokens

STEPS = 20
SPLITS = {0: [40, 8], 1: [16]}  # micro-batches of each rank; 64 tokens a global batch


def build() -> list[Router]:
    return [make("quantile"), make("quantile", bins=1000), make("sign_bias"), make("topk"), make("quantile_exact")]


def batch(step: int) -> torch.Tensor:
    """Tokens whose first part differs in kind from the rest, so that the ranks' shards do."""
    return torch.cat([tokens(48, seed=step, shift=2.0), tokens(16, seed=step + 1000, shift=-2.0)])


def worker(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    reduced: list[list[int]] = []
    original = dist.all_reduce

    def all_reduce(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        reduced.append(list(tensor.shape))
        return original(tensor, *args, **kwargs)

    dist.all_reduce = all_reduce
    try:
        routers = build()
        for step in range(STEPS):
            x = batch(step)[:48] if rank == 0 else batch(step)[48:]
            for part in x.split(SPLITS[rank]):
                for router in routers:
                    routing = router.route(part)
                    counts = routing.counts_E.clone()
                    router.count(routing)
            end_of_global_batch(routers)
            assert torch.equal(counts, routing.counts_E)  # pooling leaves local statistics alone
        torch.save([state(r) for r in routers], Path(folder) / f"{rank}.pt")
        torch.save(reduced, Path(folder) / f"reduced{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, args=(port, str(tmp_path)), nprocs=2)
    expected = build()
    for step in range(STEPS):
        for router in expected:
            router.count(router.route(batch(step)))
        end_of_global_batch(expected)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert all(same(a, state(b)) for a, b in zip(found, expected, strict=True))
        reduced = torch.load(tmp_path / f"reduced{rank}.pt", weights_only=True)
        assert reduced == [[2, 8, 1000], [1, 8]] * STEPS
