"""A process that has imported everything and forks a trainer on request, so that a test can kill it for real.

Importing torch and Lightning takes seconds; forking takes none, and each trainer still is a process of its own
with its own signals, random generators and death. Requests and answers are JSON lines on stdin and stdout.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from k3lab.config.load import load, load_folder
from k3lab.training import checkpoint, run
from k3lab.training.module import TrainingModule


def train(request: dict[str, Any]) -> int:
    """Train in a forked process and return the exit code."""
    folder = Path(request["folder"])
    resume = request["resume"]
    config = load_folder(folder, request["overrides"]) if resume else load(request["overrides"])
    if request["limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], request["limit"]))
    arm(request)
    try:
        return run.run_training(config, folder, resume=resume)
    except run.UserError as error:
        print(f"k3lab: {error}", file=sys.stderr)
        return 2


def arm(request: dict[str, Any]) -> None:
    """Send this process a signal in the middle of its n-th call of a function."""
    if not request["at"]:
        return
    owner, name = {
        "micro_batch": (TrainingModule, "training_step"),
        "optimizer_step": (TrainingModule, "configure_gradient_clipping"),
        "checkpoint": (checkpoint, "_sync"),
    }[request["at"]]
    original, calls = getattr(owner, name), [0]

    def armed(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        result = original(*args, **kwargs)
        if calls[0] == request["count"]:
            for _ in range(request["times"]):
                os.kill(os.getpid(), request["signal"])
        return result

    setattr(owner, name, armed)


def main() -> None:
    """Serve requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing but answers on standard output
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            with open(request["stderr"], "a") as errors:
                os.dup2(errors.fileno(), 2)
            code = 99
            try:
                code = train(request)
            finally:
                sys.stderr.flush()
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        print(json.dumps(code), file=answers, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
