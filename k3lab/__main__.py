"""`python -m k3lab` is the command `k3lab`."""

from k3lab.cli import main

main()
