"""The language model: pattern of mixers, decoder layers, construction from a config, audit."""
