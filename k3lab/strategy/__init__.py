"""How a model is laid out over devices: one option a file, each turned into arguments of Lightning's Trainer."""
