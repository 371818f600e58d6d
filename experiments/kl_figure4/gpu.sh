#!/usr/bin/env bash
# Kimi Linear's Figure 4 in short on one GPU: three tasks × two lengths × three mixers, the tasks side by side.
# Usage: experiments/kl_figure4/gpu.sh FOLDER [STEPS]
set -uo pipefail
output=$1
steps=${2:-2000}
common=(name=kl_figure4 paths.output="$output" model.layers=2 model.heads=2 model.head_dim=128 model.hidden_size=256
  mixer=kda,gated_deltanet,mamba2 decay=softplus ffn=swiglu residual=prenorm optim.lr=1e-3 data.batch_size=32
  trainer=gpu trainer.display=false trainer.max_steps="$steps" trainer.val_every=250 trainer.val_batches=4
  trainer.log_every=50 trainer.deterministic=false diagnostics=off checkpoint.every=1000000 launch.jobs=6)
python -m k3lab train -m "${common[@]}" data=palindrome data.seq_len=256,512 &
python -m k3lab train -m "${common[@]}" data=stack data.stacks=64 data.seq_len=256,512 &
python -m k3lab train -m "${common[@]}" data=mqar data.vocab_size=8192 data.num_kv_pairs=32 data.seq_len=256,512 &
trap 'kill $(jobs -p)' TERM
wait
