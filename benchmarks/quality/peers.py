"""The peers' encoders as scikit-learn transformers of numeric rows."""

import logging
import warnings
from unittest import mock

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from torch.nn.functional import normalize


class ScarfEncoder(TransformerMixin, BaseEstimator):
    """SCARF of TabularS3L, as in its paper but for a narrower projection head.

    A row's embedding is the output of the backbone. The similarities in the loss are
    computed as a matrix product: TabularS3L's own takes several times as long, with an
    array of (2 batch_size)² projection_dim numbers.
    """

    def __init__(
        self,
        *,
        hidden_dim,
        n_layers,
        projection_dim,
        tau,
        corruption_rate,
        batch_size,
        learning_rate,
        max_epochs,
        random_state,
    ):
        self.hidden_dim = hidden_dim
        self.n_layers = n_layers
        self.projection_dim = projection_dim
        self.tau = tau
        self.corruption_rate = corruption_rate
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_epochs = max_epochs
        self.random_state = random_state

    def fit(self, X, y=None):
        from ts3l.utils import TS3LDataModule
        from ts3l.utils.scarf_utils import SCARFDataset

        config = self._config(X.shape[1])
        frame = pd.DataFrame(X)
        rows = SCARFDataset(
            frame, config=config, continuous_cols=list(frame), category_cols=[]
        )
        loader = TS3LDataModule(
            rows, rows, self.batch_size, train_sampler="random", n_jobs=0
        )
        self.module_ = _train_first_phase(config, loader, self.max_epochs)
        return self

    def transform(self, X):
        with torch.no_grad():
            return self.module_.encoder(torch.as_tensor(X).float()).numpy()

    def _config(self, n_columns):
        from ts3l.utils.backbone_utils import MLPBackboneConfig
        from ts3l.utils.embedding_utils import IdentityEmbeddingConfig
        from ts3l.utils.scarf_utils import SCARFConfig

        return SCARFConfig(
            task="classification",
            loss_fn="CrossEntropyLoss",  # of the second phase, which is not run
            output_dim=2,
            embedding_config=IdentityEmbeddingConfig(n_columns),
            backbone_config=MLPBackboneConfig(
                input_dim=n_columns,
                hidden_dims=self.hidden_dim,
                n_hiddens=self.n_layers,
                dropout_rate=0.0,
            ),
            pretraining_head_dim=self.projection_dim,
            tau=self.tau,
            corruption_rate=self.corruption_rate,
            optim_hparams={"lr": self.learning_rate},
            random_seed=self.random_state,
        )


def _train_first_phase(config, loader, max_epochs):
    """Return the network, trained without the files and messages of lightning."""
    from pytorch_lightning import Trainer
    from ts3l.pl_modules import SCARFLightning

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers")
        warnings.filterwarnings("ignore", ".*is an instance of `nn.Module`")
        warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec")
        trained = SCARFLightning(config)
        trained.set_first_phase()
        trainer = Trainer(
            max_epochs=max_epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        with mock.patch("torch.nn.functional.cosine_similarity", _cosine_of_all_pairs):
            trainer.fit(trained, loader)
    return trained.model.eval()


def _cosine_of_all_pairs(a, b, dim):
    """Return the cosines of a (n, 1, d) and b (1, m, d) over their last axis."""
    assert a.shape[1] == b.shape[0] == 1
    assert dim == 2
    return normalize(a[:, 0], dim=1) @ normalize(b[0], dim=1).T


class CebraEncoder(TransformerMixin, BaseEstimator):
    """CEBRA, with y as its discrete labels, or without.

    Rows of a table have no time. Without labels, the positive of a row is the row
    nearest to it after Gaussian noise of standard deviation delta: CEBRA's "delta"
    sampling, with the columns themselves as the continuous variable.
    """

    def __init__(
        self,
        *,
        output_dimension,
        num_hidden_units,
        temperature,
        delta,
        batch_size,
        learning_rate,
        max_iterations,
        random_state,
    ):
        self.output_dimension = output_dimension
        self.num_hidden_units = num_hidden_units
        self.temperature = temperature
        self.delta = delta
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_iterations = max_iterations
        self.random_state = random_state

    def fit(self, X, y=None):
        from cebra import CEBRA

        torch.manual_seed(self.random_state)
        np.random.seed(self.random_state)  # noqa: NPY002
        X = np.asarray(X, dtype=np.float32)
        params = self.get_params()
        del params["random_state"]
        without_labels = self.delta is not None
        conditional = "delta" if without_labels else None
        model = CEBRA(conditional=conditional, device="cpu", **params)
        with _seeded_samplers(self.random_state):
            self.model_ = model.fit(X, X if without_labels else np.asarray(y))
        return self

    def transform(self, X):
        return self.model_.transform(np.asarray(X, dtype=np.float32))


def _seeded_samplers(seed):
    """Seed CEBRA's samplers, which draw a seed whatever they are given."""
    from cebra.distributions.base import HasGenerator

    start = HasGenerator.__init__

    def start_seeded(self, *args, **kwargs):
        start(self, *args, **kwargs)
        self.generator.manual_seed(seed)

    return mock.patch.object(HasGenerator, "__init__", start_seeded)
