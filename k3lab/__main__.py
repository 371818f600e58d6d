"""``python -m k3lab`` and the command ``k3lab``."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while its modules are still being imported is as quiet as later."""
    try:
        from k3lab.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
