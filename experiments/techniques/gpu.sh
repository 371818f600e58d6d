#!/usr/bin/env bash
# The factorial of the three techniques at about 100 M parameters on one GPU: 8 arms × 2 seeds, four jobs at once.
# Usage: experiments/techniques/gpu.sh FOLDER [STEPS]
set -uo pipefail
output=$1
steps=${2:-250}
python -m k3lab train -m name=techniques_small paths.output="$output" model=small sweep.seeds=2 launch.jobs=4 \
  decay=softplus,lower_bound router=switch_aux,quantile residual=prenorm,block_attnres \
  data.seq_len=512 data.batch_size=16 optim.lr=1e-3 trainer=gpu trainer.display=false trainer.max_steps="$steps" \
  trainer.val_every=50 trainer.val_batches=8 trainer.log_every=25 checkpoint.every=1000000
