"""The LightningModule under Lightning's own Trainer, on a model small enough to check by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn

from k3lab.data.base import NO_TARGET, Source
from k3lab.data.loader import train_loader
from k3lab.router.base import Router, Routing
from k3lab.tracking import names
from k3lab.training.machine import quiet
from k3lab.training.module import NonFiniteError, TrainingModule
from k3lab.training.validation import metrics, validate

VOCAB, WIDTH, EXPERTS, BATCH, LENGTH = 11, 6, 4, 8, 5


class Output(NamedTuple):
    logits_BTV: Tensor
    routings: tuple[Routing, ...]


class CountingRouter(Router):
    """Chooses the two best logits; its bias adds up what every global batch has counted."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(scale=1.0, normalise=True), WIDTH, EXPERTS, 2)
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.register_buffer("pending", torch.zeros(EXPERTS, dtype=torch.int64))
        self.updates = 0

    def route(self, x_TD: Tensor, mask_T: Tensor | None = None) -> Routing:
        logits_TE = self.logits(x_TD, mask_T)
        ids_Tk = logits_TE.topk(2).indices
        counts_E = self.expert_counts(ids_Tk, mask_T)
        aux = 0.3 * logits_TE.square().sum(-1).mean()
        return Routing(ids_Tk, self.mixing_weights(logits_TE.gather(1, ids_Tk).sigmoid()), counts_E, counts_E, aux)

    def update(self, pooled: Tensor) -> None:
        self.updates += 1
        self.bias += pooled


class Model(nn.Module):
    """Embedding, dropout, a router that weighs, head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.router = CountingRouter()
        self.head = nn.Linear(WIDTH, VOCAB)
        self.routers = [self.router]

    def forward(self, tokens_BT: Tensor, mask_BT: Tensor | None = None, documents_BT: None = None) -> Output:
        x = self.dropout(self.embedding(tokens_BT))
        routing = self.router.route(x.flatten(0, 1))
        weights = routing.weights_Tk[:, :1].view(*tokens_BT.shape, 1).to(x.dtype)
        return Output(self.head(x * weights), (routing,))


class Numbers(Source):
    """Random tokens; the number of targets differs from one sequence to the next."""

    vocab_size = VOCAB
    bytes_per_token = 2.0

    def row(self, *key: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(hash((self.seed, *key)) % 2**31)
        tokens, targets = torch.randint(VOCAB, (2, LENGTH), generator=generator)
        targets[: key[-1] % LENGTH] = NO_TARGET
        return tokens, targets

    def train_batch(self, step: int, first: int, count: int) -> dict[str, Tensor]:
        rows = [self.row(step, i) for i in range(first, first + count)]
        return {"tokens": torch.stack([r[0] for r in rows]), "targets": torch.stack([r[1] for r in rows])}

    def targets_in_step(self, step: int) -> int:
        return sum(LENGTH - i % LENGTH for i in range(BATCH))

    def val_batch(self, index: int, first: int, count: int) -> dict[str, Tensor]:
        return self.train_batch(-1 - index, first, count)

    def val_batches_available(self) -> int | None:
        return 3


def config(**trainer: Any) -> SimpleNamespace:
    values = {"accumulate": 1, "clip": None, "max_steps": 3, "compile": False, "val_batches": 2, **trainer}
    return SimpleNamespace(
        trainer=SimpleNamespace(**values), data=SimpleNamespace(batch_size=BATCH, seq_len=LENGTH), seed=0
    )


def module(dtype: torch.dtype = torch.float64, dropout: float = 0.0, **trainer: Any) -> TrainingModule:
    torch.manual_seed(0)
    built = config(**trainer)
    return TrainingModule(
        built,
        Model(dropout).to(dtype),
        Numbers(built.data, seed=1),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        lambda step, max_steps: 1.0 - step / max_steps,
    )


class Recorder(Callback):
    """Keeps what each optimizer step left."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.counts: list[list[list[int]]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % pl_module.accumulate == 0:
            self.steps.append(pl_module.last)
            self.counts.append(pl_module.last_counts.tolist())


def fit(trained: TrainingModule, precision: str = "64-true") -> Recorder:
    recorder, settings = Recorder(), trained.config.trainer
    with quiet():
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            precision=precision,
            max_steps=settings.max_steps,
            max_epochs=1,
            accumulate_grad_batches=settings.accumulate,
            callbacks=[recorder],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = train_loader(trained.source, trained.config.data, 0, settings.max_steps, settings.accumulate)
        trainer.fit(trained, loader)
    return recorder


def by_hand(steps: int, clip: float | None = None) -> tuple[Model, list[tuple[float, float, float]], Tensor]:
    """Plain gradient descent on whole global batches."""
    torch.manual_seed(0)
    model, source, figures = Model().double(), Numbers(None, seed=1), []
    counts = torch.zeros(EXPERTS)
    for step in range(steps):
        batch = source.train_batch(step, 0, BATCH)
        output = model(batch["tokens"])
        loss = F.cross_entropy(output.logits_BTV.flatten(0, 1), batch["targets"].flatten(), ignore_index=NO_TARGET)
        aux = output.routings[0].aux_loss
        grads = torch.autograd.grad(loss + aux, list(model.parameters()))
        norm = torch.cat([g.flatten() for g in grads]).norm()
        scale = 1.0 if clip is None else min(1.0, clip / (float(norm) + 1e-6))
        counts += output.routings[0].counts_E
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= 0.5 * (1.0 - step / steps) * scale * g
        figures.append((loss.item(), aux.item(), norm.item()))
    return model, figures, counts


@pytest.mark.parametrize("accumulate", [1, 2, 8])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_global_batch_is_one_batch_however_it_is_cut(accumulate: int, clip: float | None) -> None:
    trained = module(accumulate=accumulate, clip=clip)
    recorder = fit(trained)
    model, figures, counts = by_hand(3, clip)
    assert [(s.loss, s.aux_loss, s.grad_norm) for s in recorder.steps] == [pytest.approx(f, rel=1e-12) for f in figures]
    for name, p in trained.model.named_parameters():
        torch.testing.assert_close(p, model.get_parameter(name), rtol=1e-12, atol=1e-14)
    router = trained.model.router
    assert router.updates == 3, "once a global batch"
    assert router.bias.dtype == torch.float32
    assert torch.equal(router.bias, counts), "each micro-batch counted once"
    assert router.pending.sum() == 0
    assert torch.tensor(recorder.counts).sum(0)[0].tolist() == counts.tolist()
    assert [s.lr for s in recorder.steps] == pytest.approx([0.5, 1 / 3, 1 / 6])
    assert (trained.step, trained.tokens) == (3, 3 * BATCH * LENGTH)


def test_a_mean_of_means_would_be_caught() -> None:
    """Sequences have different numbers of targets, so weighting micro-batches alike gives another loss."""
    source = Numbers(None, seed=1)
    torch.manual_seed(0)
    model, losses = Model().double(), []
    for first in range(BATCH):
        batch = source.train_batch(0, first, 1)
        logits = model(batch["tokens"]).logits_BTV.flatten(0, 1)
        losses.append(F.cross_entropy(logits, batch["targets"].flatten(), ignore_index=NO_TARGET).item())
    assert abs(sum(losses) / BATCH - by_hand(1)[1][0][0]) > 1e-3


def test_a_non_finite_step_changes_nothing() -> None:
    trained = module(accumulate=2)
    with torch.no_grad():
        trained.model.head.bias[3] = torch.nan
    before = {k: v.clone() for k, v in trained.model.state_dict().items() if "pending" not in k}
    with pytest.raises(NonFiniteError, match="the loss is nan at step 1"):
        fit(trained)
    for name, tensor in before.items():
        torch.testing.assert_close(trained.model.state_dict()[name], tensor, rtol=0, atol=0, equal_nan=True)
    assert trained.model.router.updates == 0


def test_a_non_finite_gradient_stops_too() -> None:
    trained = module()
    trained.model.head.weight.register_hook(lambda g: g * torch.inf)
    with pytest.raises(NonFiniteError, match="the gradient's norm is"):
        fit(trained)


def test_bf16_autocast_keeps_weights_and_loss_wide() -> None:
    trained = module(torch.float32, clip=1.0)
    recorder = fit(trained, "bf16-mixed")
    assert trained.model.head.weight.dtype == torch.float32
    wide = fit(module(torch.float32, clip=1.0), "32-true")
    assert recorder.steps[0].loss == pytest.approx(wide.steps[0].loss, rel=2e-2)
    assert recorder.steps[0].loss != wide.steps[0].loss


def test_compiling_leaves_the_names_alone() -> None:
    assert set(module(compile=True).state_dict()) == set(module().state_dict())


@pytest.mark.parametrize("accumulate", [1, 4])
def test_validation_sums_over_tokens_and_leaves_no_trace(accumulate: int) -> None:
    trained = module(dropout=0.5, accumulate=accumulate)
    trained.train()
    pending, state = trained.model.router.pending.clone(), torch.get_rng_state()
    found = validate(trained.model, trained.source, trained.config, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(trained.model.router.pending, pending)
    assert trained.model.training
    model = trained.model.eval()
    batches = [trained.source.val_batch(i, 0, BATCH) for i in range(2)]
    logits = torch.cat([model(b["tokens"]).logits_BTV.flatten(0, 1) for b in batches])
    targets = torch.cat([b["targets"].flatten() for b in batches])
    loss = F.cross_entropy(logits, targets, ignore_index=NO_TARGET).item()
    real = targets != NO_TARGET
    assert found == {
        names.VAL_LOSS: pytest.approx(loss, rel=1e-12),
        names.VAL_ACCURACY: pytest.approx((logits.argmax(-1) == targets)[real].double().mean().item()),
        names.VAL_BITS_PER_BYTE: pytest.approx(loss / 0.6931471805599453 / 2, rel=1e-12),
    }


def test_validation_without_anything_to_validate() -> None:
    trained = module(val_batches=0)
    assert validate(trained.model, trained.source, trained.config, torch.device("cpu")) == {}
    assert metrics(0.0, 0.0, 0.0, 1.0) == {}
    assert names.VAL_BITS_PER_BYTE not in metrics(1.0, 1.0, 2.0, None)
