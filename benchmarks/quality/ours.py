"""The settings under test, of both protocols."""

from skcl import ContrastiveEncoder, RelaxedKMeansRegularizer

# ContrastiveEncoder, in all three variants.
ENCODER = {
    "few": {
        "loss": "supcon",
        "sampling": "balanced",
        "corruption_rate": 0.2,
        "output": "projection",
        "max_iter": 60,
    },
    "all": {"loss": "supcon", "max_iter": 60},
}
# ContrastiveEncoder, beside a regularizer.
WITH_REGULARIZER = {
    "few": {"regularizer_weight": 3.0},
    "all": {"regularizer_weight": 1.0},
}
# RelaxedKMeansRegularizer. K is the number of classes, or in descriptions the letter.
REGULARIZER = {
    "few": lambda K: {"n_clusters": K},
    "all": lambda K: {"n_clusters": K},
}


def make_encoder(protocol, n_classes, seed, relaxation=None):
    """Return the encoder, with a regularizer if a relaxation is named."""
    params = dict(ENCODER[protocol], random_state=seed)
    if relaxation is not None:
        params |= WITH_REGULARIZER[protocol]
        params["regularizer"] = RelaxedKMeansRegularizer(
            relaxation=relaxation, **REGULARIZER[protocol](n_classes)
        )
    return ContrastiveEncoder(**params)
