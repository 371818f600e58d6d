"""k3lab: three techniques of Kimi K3, each beside its rivals, composed, trained and measured."""

__version__ = "0.1.0"
