"""How fast the memory of a KDA head forgets: one file a rule, all behind `k3lab.decay.base.Decay`."""
