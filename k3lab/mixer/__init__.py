"""Token mixers: one file each, all behind `k3lab.mixer.base.Mixer`."""
