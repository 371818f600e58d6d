"""The channel mixers of a layer, dense or of experts: one file a kind, all behind `k3lab.ffn.base.FFN`."""
