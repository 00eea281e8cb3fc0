"""Files of fitted models: nothing in them is executed on loading.

A file is an uncompressed zip archive with three members: what wrote it, as JSON; the
networks' weights, as safetensors; and all else, as skops describes it.
"""

import json
import os
import re
from collections.abc import Iterator
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import sklearn
import torch
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.utils._metadata_requests import SIMPLE_METHODS

from skcl._model import WeightsApart
from skcl._version import __version__

FORMAT = 1

# Kinds of skops' descriptions of which a file may consist. Others would call functions,
# rebuild objects by calls, or read files of other formats.
KINDS = {
    "DTypeNode",
    "DictNode",
    "JsonNode",
    "ListNode",
    "NdArrayNode",
    "ObjectNode",
    "RandomStateNode",
    "SliceNode",
    "TupleNode",
    "TypeNode",
}

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
        an object of a type that is none of skcl's, of numpy's arrays or of
        scikit-learn's estimators, trees left out.
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
        what :func:`save` does not write.
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
    plain, requests = _without_requests(model)
    with WeightsApart() as apart:
        described, refused = _describe(plain)
    if refused:
        raise ValueError(f"The model cannot be saved: {_culprit(plain, refused)}.")
    about = {
        "format": FORMAT,
        "skcl": __version__,
        "scikit-learn": sklearn.__version__,
        "torch": torch.__version__,
        "requests": requests,
    }
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_STORED) as file:
        file.writestr(ABOUT, json.dumps(about))
        file.writestr(WEIGHTS, safetensors.save(apart.weights))
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
    except (RefusedFile, MemoryError, Warning):
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
    refused = _kinds(described) - KINDS
    if refused:
        raise RefusedFile(
            f"{name} is refused: it holds {', '.join(sorted(refused))}, which no file "
            "of skcl.save has."
        )
    with WeightsApart(weights) as apart:
        model = skops.loads(described, trusted=TRUSTED)
    if not isinstance(model, BaseEstimator):
        raise RefusedFile(f"{name} holds no estimator but a {type(model).__name__}.")
    if apart.weights:
        raise ValueError(f"no model has the weights {sorted(apart.weights)}")
    _set_requests(model, about["requests"])
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


def _kinds(described: bytes) -> set[str]:
    """Return the kinds in a description; refuse compressed members."""
    with ZipFile(BytesIO(described)) as file:
        _check_stored(file)
        found = [json.loads(file.read("schema.json"))]
    kinds = set()
    while found:
        part = found.pop()
        if isinstance(part, dict):
            kinds |= {str(part["__loader__"])} if "__loader__" in part else set()
            found.extend(part.values())
        elif isinstance(part, list):
            found.extend(part)
    return kinds


def _describe(value: Any) -> tuple[bytes, str]:
    """Return what skops makes of a value, and what in it :func:`load` would refuse."""
    _, skops = _formats()
    try:
        data = skops.dumps(value)
    except MemoryError:
        raise
    except Exception as error:  # of what it cannot describe
        return b"", f"{type(value).__name__} ({error})"
    refused = set(skops.get_untrusted_types(data=data)) - set(TRUSTED)
    return data, ", ".join(sorted(refused or _kinds(data) - KINDS))


def _culprit(model: BaseEstimator, refused: str) -> str:
    """Return which parameter holds what is refused, and what to do instead."""
    for name, value in model.get_params().items():
        if not _holds_estimators(value) and _describe(value)[1]:
            found = getattr(value, "__qualname__", None) or repr(value)
            refused = f"{name}={found}, and with it {refused}"
            break
    return (
        f"it holds {refused}, and load trusts no function, and no types but those of "
        "skcl, of numpy's arrays and of scikit-learn's estimators, trees left out. "
        "pickle and joblib save it, and their files can run any code when they are "
        "loaded"
    )


# Which weights and the like an estimator is passed is kept by scikit-learn in an object
# with a cycle. A file has the requests themselves, by the place of the estimator.


def _without_requests(model: BaseEstimator) -> tuple[BaseEstimator, dict[str, dict]]:
    """Return a model without metadata requests, a copy if it has any, and these."""
    requests = {
        place: _requests(estimator)
        for place, estimator in _estimators(model)
        if "_metadata_request" in vars(estimator)
    }
    if requests:
        model = deepcopy(model)
        for _, estimator in _estimators(model):
            vars(estimator).pop("_metadata_request", None)
    return model, requests


def _set_requests(model: BaseEstimator, requests: dict[str, dict]) -> None:
    with config_context(enable_metadata_routing=True):
        for place, estimator in list(_estimators(model)):
            for method, request in requests.get(place, {}).items():
                getattr(estimator, f"set_{method}_request")(**request)


def _requests(estimator: BaseEstimator) -> dict[str, dict]:
    """Return what each method of an estimator requests, where it requests anything."""
    kept = vars(estimator)["_metadata_request"]
    by_method = {method: getattr(kept, method, None) for method in SIMPLE_METHODS}
    return {
        method: dict(request.requests)
        for method, request in by_method.items()
        if request is not None and request.requests
    }


def _estimators(value: Any, place: str = "") -> Iterator[tuple[str, BaseEstimator]]:
    """Yield the estimators within a value, with their places."""
    if isinstance(value, BaseEstimator):
        yield place, value
        value = vars(value)
    if isinstance(value, dict):
        for name, part in value.items():
            if name != "_metadata_request":
                yield from _estimators(part, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _estimators(part, f"{place}[{i}]")


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
        if {(k, type(k)) for k in a} != {(k, type(k)) for k in b}:
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
    state = value.__getstate__()
    if "_metadata_request" in vars(value):
        state = state | {"_metadata_request": _requests(value)}
    return state


def remove_parts(path: Path) -> None:
    """Remove what kills have left that were to take the place of a file."""
    part_of_it = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}\.part")
    for part in path.parent.iterdir():
        if part_of_it.fullmatch(part.name):
            part.unlink(missing_ok=True)


def _replace(path: Path, data: bytes) -> None:
    """Write a file in one step: after a crash there is the old one, or the new one."""
    part = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
