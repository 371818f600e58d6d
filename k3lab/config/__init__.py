"""Configuration: where conf/ is, the typed schema of every option, composition and validation. Free of torch."""
