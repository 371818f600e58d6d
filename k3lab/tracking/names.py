"""The names of all metrics: whatever is logged, plotted or compared is spelt here and nowhere else.

Indices start at 0 and have at least two digits, so that names sort by depth. ``balance/``, ``routing/`` and
``decay/`` count decoder layers. ``depth/`` counts sublayers: 2·l is the mixer and 2·l + 1 the FFN of decoder layer l;
what concerns the model's output rather than a sublayer is filed under ``output``.
"""

TRAIN_LOSS = "train/loss"
TRAIN_AUX_LOSS = "train/aux_loss"
TRAIN_GRAD_NORM = "train/grad_norm"
TRAIN_LR = "train/lr"

VAL_LOSS = "val/loss"
VAL_BITS_PER_BYTE = "val/bits_per_byte"
VAL_ACCURACY = "val/accuracy"

BALANCE_MAX_VIO = "balance/max_vio"
BALANCE_MAX_VIO_FLOOR = "balance/max_vio_floor"
BALANCE_MIN_VIO = "balance/min_vio"
BALANCE_CV = "balance/cv"
BALANCE_ENTROPY = "balance/entropy"
BALANCE_DEAD_EXPERTS = "balance/dead_experts"
BALANCE_BIAS_SPREAD = "balance/bias_spread"
BALANCE_BIAS_QUANTILES = {
    0.0: "balance/bias_min",
    0.25: "balance/bias_q25",
    0.5: "balance/bias_median",
    0.75: "balance/bias_q75",
    1.0: "balance/bias_max",
}

ROUTING_COACTIVATION = "routing/coactivation"
ROUTING_COACTIVATION_CHANCE = "routing/coactivation_chance"
ROUTING_SPECIALISATION = "routing/specialisation"
ROUTING_TOKEN_SPECIALISATION = "routing/token_specialisation"

DEPTH_OUTPUT_RMS = "depth/output_rms"
DEPTH_GRAD_RMS = "depth/grad_rms"
DEPTH_UPDATE_RATIO = "depth/update_ratio"
DEPTH_UPDATE_COSINE = "depth/update_cosine"
DEPTH_BLOCK_INFLUENCE = "depth/block_influence"
DEPTH_ANGULAR_DISTANCE = "depth/angular_distance"
DEPTH_EFFECTIVE_RANK = "depth/effective_rank"
DEPTH_SOURCE_WEIGHT = "depth/source_weight"
DEPTH_SOURCE_ENTROPY = "depth/source_entropy"
DEPTH_EMBEDDING_MASS = "depth/embedding_mass"
DEPTH_LAST_SOURCE_MASS = "depth/last_source_mass"
DEPTH_ABLATION_LOSS = "depth/ablation_loss"
DEPTH_LENS_LOSS = "depth/lens_loss"
DEPTH_LENS_AGREEMENT = "depth/lens_agreement"
DEPTH_CKA_NEXT = "depth/cka_next"

DECAY_HALF_LIFE_MEDIAN = "decay/half_life_median"
DECAY_HALF_LIFE_Q10 = "decay/half_life_q10"
DECAY_HALF_LIFE_Q90 = "decay/half_life_q90"
DECAY_DEAD_FRACTION = "decay/dead_fraction"
DECAY_AT_BOUND_FRACTION = "decay/at_bound_fraction"
DECAY_ALWAYS_DEAD_FRACTION = "decay/always_dead_fraction"
DECAY_ALWAYS_AT_BOUND_FRACTION = "decay/always_at_bound_fraction"

PERF_TOKENS_PER_S = "perf/tokens_per_s"
PERF_STEP_MS = "perf/step_ms"
PERF_MFU = "perf/mfu"
PERF_PEAK_MEMORY_GIB = "perf/peak_memory_gib"

OUTPUT = "output"


def layer_label(index: int) -> str:
    """``3`` → ``layer_03``."""
    return f"layer_{index:02d}"


def layer(name: str, index: int) -> str:
    """The same metric of one decoder layer: ``balance/max_vio``, 3 → ``balance/layer_03/max_vio``."""
    family, metric = name.split("/", 1)
    return f"{family}/{layer_label(index)}/{metric}"


def drop_rate(capacity: float) -> str:
    """Share of the assignments above a capacity factor: 1.25 → ``balance/drop_rate_1.25``."""
    return f"balance/drop_rate_{capacity:.2f}"


def depth(name: str, index: int | None) -> str:
    """A depth metric of one sublayer (None: of the output): ``depth/output_rms/layer_03``."""
    return f"{name}/{OUTPUT if index is None else layer_label(index)}"


def source_weight(index: int | None, source: int) -> str:
    """The mean weight of one source in a sublayer's mix: ``depth/source_weight/layer_03/source_01``."""
    return f"{depth(DEPTH_SOURCE_WEIGHT, index)}/source_{source:02d}"
