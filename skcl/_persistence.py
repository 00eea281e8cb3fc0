"""Files of fitted models: nothing in them is executed on loading.

A file is an uncompressed zip archive with three members: what wrote it, as JSON; the
networks' weights, as safetensors; and all else, as skops describes it.
"""

import json
import os
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import sklearn
import torch
from sklearn.base import BaseEstimator

from skcl._model import weights_kept_apart
from skcl._version import __version__

FORMAT = 1

ABOUT, WEIGHTS, MODEL = "about.json", "weights.safetensors", "model.skops"

# What a file may hold beside scikit-learn's estimators, arrays and plain values.
TRUSTED = [
    "numpy.dtype",
    "skcl._discrepancy.DiscrepancyScorer",
    "skcl._encoder.ContrastiveEncoder",
    "skcl._encoder.Seeds",
    "skcl._model.Augmentation",
    "skcl._model.Model",
    "skcl._preprocessing.Categories",
    "skcl._preprocessing.Numbers",
    "skcl._preprocessing.Preprocessor",
    "skcl._regularizer.RelaxedKMeansRegularizer",
    "skcl._training.Best",
    "skcl._training.History",
    "skcl._training.Progress",
    "skcl.networks.Architecture",
]


def save(model, path):
    """Save an estimator to a file, from which :func:`load` runs no code.

    The file is read back and compared before it takes the place of another. It holds
    no training rows, and grows with the network only.

    Parameters
    ----------
    model : estimator
        A ContrastiveEncoder, RelaxedKMeansRegularizer or DiscrepancyScorer, fitted or
        not, or a pipeline of such and of scikit-learn's estimators.
    path : str or path-like
        Where to. A file there is replaced in one step, or stays as it is.

    Raises
    ------
    TypeError
        If the model is no estimator.
    ValueError
        If it holds what a file cannot: a function, such as a callable augmentation, or
        an object of a type that is none of skcl's, scikit-learn's or numpy's.
    OSError
        If the file cannot be written.
    ImportError
        If safetensors or skops is missing: ``pip install skcl[io]``.

    See Also
    --------
    load : Loads the estimator.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sklearn.datasets import load_wine
    >>> import skcl
    >>> X, _ = load_wine(return_X_y=True)
    >>> encoder = skcl.ContrastiveEncoder(max_iter=1, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     skcl.save(encoder, Path(folder) / "encoder.skcl")
    ...     loaded = skcl.load(Path(folder) / "encoder.skcl")
    >>> bool((loaded.transform(X) == encoder.transform(X)).all())
    True
    """
    if not isinstance(model, BaseEstimator):
        raise TypeError(f"{model!r} is no estimator: only estimators can be saved.")
    _replace(Path(path), to_bytes(model))


def load(path):
    """Load an estimator that :func:`save` has saved.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    estimator
        The estimator; an encoder is on the device it was on, or where that is missing
        on the CPU.

    Raises
    ------
    ValueError
        If the file is damaged, of a newer version of skcl, of another kind, or holds
        an object of a type that is none of skcl's, scikit-learn's or numpy's.
    OSError
        If it cannot be read.
    ImportError
        If safetensors or skops is missing: ``pip install skcl[io]``.

    Warns
    -----
    InconsistentVersionWarning
        If another version of scikit-learn has written the file.

    See Also
    --------
    save : Saves an estimator.
    """
    return _from_bytes(Path(path).read_bytes(), os.fspath(path))


def to_bytes(model: BaseEstimator) -> bytes:
    """Return the content of a model's file, which has been compared with the model."""
    safetensors, _ = _formats()
    with weights_kept_apart({}) as weights:
        described, refused = _describe(model)
    if refused:
        raise ValueError(f"The model cannot be saved: {_culprit(model, refused)}.")
    about = {
        "format": FORMAT,
        "skcl": __version__,
        "scikit-learn": sklearn.__version__,
        "torch": torch.__version__,
    }
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_STORED) as file:
        file.writestr(ABOUT, json.dumps(about))
        file.writestr(WEIGHTS, safetensors.save(weights))
        file.writestr(MODEL, described)
    data = buffer.getvalue()
    lost = _difference(model, _from_bytes(data, "what was written"), "model")
    if lost:
        raise ValueError(f"The model cannot be saved: {lost} would not be read back.")
    return data


class RefusedFile(ValueError):
    """A file that is not loaded, and why."""


def _from_bytes(data: bytes, name: str) -> BaseEstimator:
    _formats()
    from skops.io.exceptions import UntrustedTypesFoundException

    try:
        return _read(data, name)
    except RefusedFile:
        raise
    except UntrustedTypesFoundException as error:
        raise RefusedFile(
            f"{name} is refused: it holds types that no file of skcl.save has. {error}"
        ) from error
    except Exception as error:
        raise RefusedFile(
            f"{name} is not a file of skcl.save, or is cut short or damaged: "
            f"{type(error).__name__}: {error}"
        ) from error


def _read(data: bytes, name: str) -> BaseEstimator:
    safetensors, skops = _formats()
    with ZipFile(BytesIO(data)) as file:
        _check_stored(file)
        about = json.loads(file.read(ABOUT))
        if about["format"] > FORMAT:
            raise RefusedFile(
                f"{name} is of format {about['format']}, written by skcl "
                f"{about['skcl']}: this is {__version__}, which reads formats up to "
                f"{FORMAT}. Install a newer skcl."
            )
        weights = safetensors.load(file.read(WEIGHTS))
        described = file.read(MODEL)
    with ZipFile(BytesIO(described)) as file:
        _check_stored(file)
    with weights_kept_apart(weights):
        model = skops.loads(described, trusted=TRUSTED)
    if not isinstance(model, BaseEstimator):
        raise RefusedFile(f"{name} holds no estimator but a {type(model).__name__}.")
    return model


def _formats() -> tuple[Any, Any]:
    """Return the modules of safetensors and skops."""
    try:
        import safetensors.numpy
        import skops.io
    except ImportError as error:
        raise ImportError(
            f"Saving and loading need {error.name}: pip install skcl[io]."
        ) from error
    return safetensors.numpy, skops.io


def _check_stored(file: ZipFile) -> None:
    """Refuse compressed members, which could be of any size."""
    for info in file.infolist():
        if info.compress_type != ZIP_STORED:
            raise ValueError(f"its member {info.filename!r} is compressed")


def _describe(value: Any) -> tuple[bytes, str]:
    """Return what skops makes of a value, and what in it :func:`load` would refuse."""
    _, skops = _formats()
    try:
        data = skops.dumps(value)
    except Exception as error:  # of what it cannot describe
        return b"", f"{type(value).__name__} ({error})"
    refused = set(skops.get_untrusted_types(data=data)) - set(TRUSTED)
    return data, ", ".join(sorted(refused))


def _culprit(model: BaseEstimator, refused: str) -> str:
    """Return which parameter holds what is refused, and what to do instead."""
    for name, value in model.get_params().items():
        if not _holds_estimators(value) and _describe(value)[1]:
            found = getattr(value, "__qualname__", None) or repr(value)
            refused = f"{name}={found}, and with it {refused}"
            break
    return (
        f"it holds {refused}, and load trusts no code and no types but those of skcl, "
        "scikit-learn and numpy. pickle and joblib save it, and their files can run "
        "any code when they are loaded"
    )


def _holds_estimators(value: Any) -> bool:
    """Whether a parameter's own parameters are asked for besides, as those of steps."""
    if isinstance(value, list | tuple):
        return any(map(_holds_estimators, value))
    return isinstance(value, BaseEstimator)


def _difference(a: Any, b: Any, place: str) -> str | None:
    """Return the place of the first difference between two objects, if there is any."""
    if type(a) is not type(b):
        return place
    if isinstance(a, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape
        if same and a.dtype == object:
            return _difference(a.tolist(), b.tolist(), place)
        return None if same and a.tobytes() == b.tobytes() else place
    if isinstance(a, dict):
        if [(k, type(k)) for k in a] != [(k, type(k)) for k in b]:
            return place
        places = ((a[k], b[k], f"{place}.{k}") for k in a)
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            return place
        pairs = enumerate(zip(a, b, strict=True))
        places = ((x, y, f"{place}[{i}]") for i, (x, y) in pairs)
    elif isinstance(a, np.random.RandomState):
        places = [(a.get_state(), b.get_state(), place)]
    elif hasattr(a, "__dict__") and not isinstance(a, type):
        places = [(_state(a), _state(b), place)]
    else:
        return None if a == b or a != a else place
    return next(filter(None, (_difference(*each) for each in places)), None)


def _state(value: Any) -> Any:
    state = value.__getstate__() if hasattr(value, "__getstate__") else vars(value)
    return vars(value) if state is None else state


def parts_of(path: Path) -> str:
    """Return how the names of files begin that are to take the place of another."""
    return f".{path.name}."


def _replace(path: Path, data: bytes) -> None:
    """Write a file in one step: after a crash there is the old one, or the new one."""
    with NamedTemporaryFile(
        dir=path.parent, prefix=parts_of(path), delete=False
    ) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
