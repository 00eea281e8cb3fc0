"""The settings under test, of both protocols."""

from skcl import ContrastiveEncoder, RelaxedKMeansRegularizer

# ContrastiveEncoder, in all variants.
ENCODER = {
    "few": {
        "loss": "supcon",
        "sampling": "balanced",
        "corruption_rate": 0.2,
        "output": "projection",
        "max_iter": 60,
    },
    "all": {
        "loss": "supcon",
        "class_weight": "balanced",
        "projection_dim": 8,
        "corruption_rate": 0.4,
        "output": "projection",
        "passthrough": True,
        "max_iter": 40,
    },
}
# ContrastiveEncoder, beside a regularizer.
WITH_REGULARIZER = {
    "few": {"regularizer_weight": 3.0},
    "all": {"regularizer_weight": 0.3},
}
# RelaxedKMeansRegularizer. K is the number of classes, or in descriptions the letter.
REGULARIZER = {
    "few": lambda K: {"n_clusters": K},
    "all": lambda K: {"n_clusters": K},
}


def make_encoder(protocol, n_classes, seed, relaxation=None, **params):
    """Return the encoder, with a regularizer if a relaxation is named."""
    params = ENCODER[protocol] | params | {"random_state": seed}
    if relaxation is not None:
        params |= WITH_REGULARIZER[protocol]
        params["regularizer"] = RelaxedKMeansRegularizer(
            relaxation=relaxation, **REGULARIZER[protocol](n_classes)
        )
    return ContrastiveEncoder(**params)
