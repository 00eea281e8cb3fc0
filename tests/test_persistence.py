"""Files of models: all is read back, nothing is executed, and nothing else is taken."""

import io
import json
import pickle
import zipfile

import cloudpickle
import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import skops.io
import torch
from numpy.testing import assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import skcl
from skcl import ContrastiveEncoder, DiscrepancyScorer, RelaxedKMeansRegularizer
from skcl._persistence import ABOUT, MODEL, TRUSTED, WEIGHTS


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.skcl"


@pytest.fixture
def table():
    """Numbers, some missing, and categories, with classes."""
    X, y = load_wine(return_X_y=True, as_frame=True)
    X = X.iloc[:, :4].copy()
    X.iloc[::7, 1] = np.nan
    X["kind"] = pd.Categorical(np.array(["a", "b", "c"])[np.arange(len(X)) % 3])
    X["name"] = np.where(np.arange(len(X)) % 2, "x", None)
    return X, np.array(["one", "two", "three"])[y]


def rewritten(path, replace):
    """Write a file's members again, some of them replaced by others."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in (members | replace(members)).items():
            file.writestr(name, data)


def with_schema(described, change):
    """Return what skops describes, its schema changed."""
    source, target = zipfile.ZipFile(io.BytesIO(described)), io.BytesIO()
    with source, zipfile.ZipFile(target, "w") as file:
        for name in source.namelist():
            data = source.read(name)
            if name == "schema.json":
                data = json.dumps(change(json.loads(data)))
            file.writestr(name, data)
    return target.getvalue()


# All is read back.


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"loss": "supcon", "class_weight": "balanced", "sampling": "balanced"},
        {"loss": "supcon", "class_weight": {"one": 1, "two": 2.5, "three": 0.5}},
        {"augmentation": "noise", "output": "projection", "passthrough": True},
        {"early_stopping": True, "hidden_layer_sizes": [8], "random_state": None},
        {"regularizer": RelaxedKMeansRegularizer(3), "categorical_features": ["kind"]},
        {"random_state": np.random.RandomState(3)},
    ],
    ids=lambda params: "-".join(params),
)
def test_an_encoder_is_read_back(params, table, make_encoder, path):
    X, y = table
    if "categorical_features" in params:
        X = X.drop(columns="name")
    encoder = make_encoder(**params).fit(X, y)
    skcl.save(encoder, path)
    loaded = skcl.load(path)
    assert_array_equal(loaded.transform(X), encoder.transform(X))
    assert_array_equal(loaded.embed_views(X), encoder.embed_views(X))
    assert_array_equal(loaded.get_feature_names_out(), encoder.get_feature_names_out())
    assert loaded.score(X, y) == encoder.score(X, y)
    assert loaded.history_ == encoder.history_
    assert {k: type(v) for k, v in loaded.get_params().items()} == {
        k: type(v) for k, v in encoder.get_params().items()
    }
    for model in (encoder, loaded):  # training goes on as if nothing had been between
        model.set_params(warm_start=True, max_iter=2).fit(X, y)
    assert_array_equal(loaded.transform(X), encoder.transform(X))


def test_the_other_estimators_are_read_back(table, make_encoder, path):
    X, y = table
    encoder = make_encoder()
    Z = encoder.fit_transform(X)
    for model in (
        RelaxedKMeansRegularizer(3, random_state=0),
        RelaxedKMeansRegularizer(3, relaxation="spectral", random_state=0),
    ):
        skcl.save(model.fit(Z), path)
        assert_array_equal(skcl.load(path).predict_proba(Z), model.predict_proba(Z))
    scorer = DiscrepancyScorer(clone(encoder), random_state=0).fit(X, y)
    skcl.save(scorer, path)
    loaded = skcl.load(path)
    assert loaded.score(X, y) == scorer.score(X, y)
    assert_array_equal(loaded.transform(X), scorer.transform(X))


def test_unfitted_estimators_are_read_back(make_encoder, path):
    skcl.save(make_encoder(temperature=0.5), path)
    assert skcl.load(path).temperature == 0.5
    skcl.save(DiscrepancyScorer(ContrastiveEncoder()), path)
    assert isinstance(skcl.load(path).encoder, ContrastiveEncoder)


def test_a_pipeline_is_read_back(table, make_encoder, path):
    X, y = table
    classifier = LogisticRegression(class_weight="balanced")
    model = make_pipeline(make_encoder(), classifier).fit(X, y)
    skcl.save(model, path)
    assert_array_equal(skcl.load(path).predict_proba(X), model.predict_proba(X))


def test_what_load_trusts_is_what_save_writes(table, make_encoder):
    X, y = table
    encoder = make_encoder(regularizer=RelaxedKMeansRegularizer(2), early_stopping=True)
    kept = []
    encoder._fit_watched(X, y, kept.append)
    scorer = DiscrepancyScorer(make_encoder()).fit(X, y)
    types = skops.io.get_untrusted_types(data=skops.io.dumps([kept[-1], scorer]))
    assert sorted(types) == TRUSTED


@pytest.mark.parametrize("tool", [pickle, cloudpickle, joblib])
def test_the_usual_tools_work_too(tool, table, make_encoder, path):
    X, y = table
    model = make_pipeline(make_encoder(), LogisticRegression(class_weight="balanced"))
    model.fit(X, y)
    with path.open("wb") as file:
        tool.dump(model, file)
    with path.open("rb") as file:
        loaded = tool.load(file)
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_a_callable_of_a_notebook_travels_by_cloudpickle(rows, make_encoder):
    encoder = make_encoder(augmentation=lambda x, generator: x + 1).fit(rows)
    loaded = cloudpickle.loads(cloudpickle.dumps(encoder))
    assert_array_equal(loaded.transform(rows), encoder.transform(rows))


def test_the_size_does_not_grow_with_the_rows(make_encoder, path):
    rng, sizes = np.random.RandomState(0), []
    for n in (2000, 8000):
        encoder = make_encoder(max_iter=1, early_stopping=True)
        skcl.save(encoder.fit(rng.normal(size=(n, 4))), path)
        sizes.append(path.stat().st_size)
    assert sizes[1] < 1.01 * sizes[0]


def test_saving_leaves_the_model_as_it_is(table, make_encoder, path):
    X, y = table
    encoder = make_encoder(early_stopping=True).fit(X, y)
    network, before = encoder.module_, pickle.dumps(encoder)
    skcl.save(encoder, path)
    assert encoder.module_ is network
    assert pickle.dumps(encoder) == before


def test_weights_are_safetensors(rows, make_encoder, path):
    import safetensors.numpy

    encoder = make_encoder().fit(rows)
    skcl.save(encoder, path)
    with zipfile.ZipFile(path) as file:
        weights = safetensors.numpy.load(file.read(WEIGHTS))
    state = encoder.module_.state_dict()
    assert set(weights) == {f"0.{name}" for name in state}  # once each
    for name, value in state.items():
        assert_array_equal(weights[f"0.{name}"], value.numpy())


def test_requests_of_metadata_are_read_back(rows, make_encoder, path):
    y, weight = np.arange(len(rows)) % 2, np.arange(1, len(rows) + 1)
    with sklearn.config_context(enable_metadata_routing=True):
        head = LogisticRegression().set_fit_request(sample_weight=True)
        encoder = make_encoder().set_fit_request(sample_weight=True)
        encoder.set_score_request(sample_weight=False)
        model = make_pipeline(encoder, head).fit(rows, y, sample_weight=weight)
        before = pickle.dumps(model)
        skcl.save(model, path)
        assert pickle.dumps(model) == before
        loaded = skcl.load(path)
        assert str(loaded.get_metadata_routing()) == str(model.get_metadata_routing())
        assert_array_equal(loaded.predict_proba(rows), model.predict_proba(rows))
        loaded.fit(rows, y, sample_weight=weight)
    assert_array_equal(loaded.predict_proba(rows), model.predict_proba(rows))


def test_an_encoder_on_a_device_object_and_a_path_is_read_back(
    rows, make_encoder, path
):
    encoder = make_encoder(
        device=torch.device("cpu"),
        checkpoint=path.with_name("fit"),
        regularizer=RelaxedKMeansRegularizer(2, device=torch.device("cpu")),
    ).fit(rows)
    skcl.save(encoder, path)
    loaded = skcl.load(path)
    assert loaded.device == loaded.regularizer.device == "cpu"
    assert loaded.checkpoint == str(path.with_name("fit"))


def test_the_output_of_a_saved_encoder_is_that_of_pandas(table, make_encoder, path):
    X, _ = table
    encoder = make_encoder().set_output(transform="pandas").fit(X)
    skcl.save(encoder, path)
    pd.testing.assert_frame_equal(skcl.load(path).transform(X), encoder.transform(X))


@pytest.mark.parametrize("error", [MemoryError, FutureWarning])
def test_what_is_not_the_files_fault_is_not_called_so(error, saved, monkeypatch):
    def fails(*args, **kwargs):
        raise error("elsewhere")

    monkeypatch.setattr(skops.io, "loads", fails)
    with pytest.raises(error, match="elsewhere"):
        skcl.load(saved)


# What a file cannot hold is refused.


class Regularizer(BaseEstimator):
    def start(self, points, generator, y=None):
        return None

    def penalty(self, means, state, y=None, rows=None):
        return means.sum()


def shift(x, generator):
    return x + 1


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("augmentation", shift, "augmentation=shift"),
        ("augmentation", lambda x, generator: x + 1, "augmentation=.*<lambda>"),
        ("loss", lambda z, temperature, y: z.sum(), "loss=.*<lambda>"),
        ("regularizer", Regularizer(), "Regularizer"),
        ("class_weight", {False: 1, True: 2}, "class_weight"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_by_name(
    name, value, shown, rows, make_encoder, path
):
    encoder = make_encoder(**{name: value}).fit(rows, np.arange(len(rows)) % 2 == 0)
    with pytest.raises(ValueError, match=f"cannot be saved: .*{shown}"):
        skcl.save(encoder, path)
    assert not list(path.parent.iterdir())


def test_a_pipeline_with_another_type_is_refused(rows, make_encoder, path):
    forest = RandomForestClassifier(3, random_state=0)
    model = make_pipeline(make_encoder(), forest).fit(rows, np.arange(len(rows)) % 2)
    with pytest.raises(ValueError, match=r"holds .*sklearn.tree._tree.Tree"):
        skcl.save(model, path)
    with pytest.raises(TypeError, match="no estimator"):
        skcl.save({"model": model}, path)


# A file is refused that is not whole, or not of skcl.


@pytest.fixture
def saved(rows, make_encoder, path):
    skcl.save(make_encoder(max_iter=1).fit(rows), path)
    return path


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.9, 0.9999])
def test_a_truncated_file_is_refused(share, saved):
    data = saved.read_bytes()
    saved.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match=r"model.skcl is not a file of skcl.save, or"):
        skcl.load(saved)


def test_a_changed_byte_is_noticed(saved):
    data = saved.read_bytes()
    rng = np.random.RandomState(0)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        infos = file.infolist()
    for info in infos:  # within the members, whose sums are in the archive
        start = info.header_offset + 30 + len(info.filename)
        for at in rng.randint(start, start + info.file_size, size=5):
            changed = bytearray(data)
            changed[at] ^= 1
            saved.write_bytes(changed)
            with pytest.raises(ValueError, match="damaged"):
                skcl.load(saved)


def test_a_file_of_another_kind_is_refused(saved, rows, make_encoder):
    encoder = make_encoder(max_iter=1).fit(rows)
    for write in (
        lambda: saved.write_text("not a model"),
        lambda: joblib.dump(encoder, saved),
        lambda: skops.io.dump(encoder, saved),
        lambda: saved.write_bytes(pickle.dumps(encoder)),
    ):
        write()
        with pytest.raises(ValueError, match=r"not a file of skcl.save"):
            skcl.load(saved)
    with pytest.raises(FileNotFoundError):
        skcl.load(saved.parent / "nothing")


def test_a_newer_format_is_refused(saved):
    def newer(members):
        about = json.loads(members[ABOUT])
        return {ABOUT: json.dumps(about | {"format": 2, "skcl": "7.0"})}

    rewritten(saved, newer)
    with pytest.raises(ValueError, match=r"format 2, written by skcl 7.0.*newer skcl"):
        skcl.load(saved)


def node(kind, **parts):
    """A part of a description, as a file could have it."""
    base = {"__class__": "list", "__module__": "builtins", "__loader__": kind}
    return base | {"__id__": 1} | parts


@pytest.mark.parametrize(
    ("crafted", "shown"),
    [
        (node("FunctionNode", __module__="os", content="system"), "FunctionNode"),
        (node("FunctionNode", __module__="numpy", content="log1p"), "FunctionNode"),
        (node("PartialNode", content={}), "PartialNode"),
        (node("MethodNode", content={}), "MethodNode"),
        (node("OperatorFuncNode", attrs={}), "OperatorFuncNode"),
        (node("ConstructorFromReduceNode"), "ConstructorFromReduceNode"),
        (node("SparseMatrixNode", file="a.npz"), "SparseMatrixNode"),
        (node("ListNode", content=[node("FunctionNode")]), "FunctionNode"),
        (node("ObjectNode", __module__="subprocess", __class__="Popen"), "Popen"),
        (node("TypeNode", __module__="subprocess", __class__="Popen"), "Popen"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_crafted_parts_are_refused_before_they_are_made(
    crafted, shown, saved, monkeypatch
):
    def change(schema):
        schema["content"]["content"]["crafted"] = crafted
        return schema

    def make(*args):
        raise AssertionError("something was made")

    rewritten(saved, lambda m: {MODEL: with_schema(m[MODEL], change)})
    monkeypatch.setattr("skops.io._audit.Node.construct", make)
    with pytest.raises(ValueError, match=rf"(refused|damaged).*{shown}"):
        skcl.load(saved)


def test_weights_of_no_model_are_refused(saved):
    import safetensors.numpy

    def more(members):
        weights = safetensors.numpy.load(members[WEIGHTS])
        return {WEIGHTS: safetensors.numpy.save(weights | {"1.more": np.ones(3)})}

    rewritten(saved, more)
    with pytest.raises(ValueError, match=r"no model has the weights.*1\.more"):
        skcl.load(saved)


def test_a_crafted_class_in_the_place_of_another_is_refused(saved):
    def change(schema):
        text = json.dumps(schema)
        assert '"Seeds"' in text
        text = text.replace('"skcl._encoder"', '"subprocess"')
        return json.loads(text.replace('"ContrastiveEncoder"', '"Popen"'))

    rewritten(saved, lambda m: {MODEL: with_schema(m[MODEL], change)})
    with pytest.raises(ValueError, match=r"subprocess.Popen"):
        skcl.load(saved)


def test_a_backbone_in_a_file_is_refused(saved):
    def change(schema):
        return json.loads(json.dumps(schema).replace('\\"mlp\\"', '\\"make\\"'))

    rewritten(saved, lambda m: {MODEL: with_schema(m[MODEL], change)})
    with pytest.raises(ValueError, match="another backbone"):
        skcl.load(saved)


def test_a_compressed_member_is_refused(saved):
    with zipfile.ZipFile(saved) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    with pytest.raises(ValueError, match="compressed"):
        skcl.load(saved)


def test_a_value_that_is_no_estimator_is_refused(saved):
    rewritten(saved, lambda members: {MODEL: skops.io.dumps([1, 2])})
    with pytest.raises(ValueError, match="holds no estimator but a list"):
        skcl.load(saved)


# A file is there whole, or not at all.


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(call, saved, make_encoder, monkeypatch):
    before = saved.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"skcl._persistence.os.{call}", full)
    with pytest.raises(OSError, match="No space left"):
        skcl.save(make_encoder(), saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_folder_that_does_not_exist(make_encoder, tmp_path):
    with pytest.raises(FileNotFoundError):
        skcl.save(make_encoder(), tmp_path / "nowhere" / "model.skcl")


@pytest.mark.parametrize("package", ["skops", "safetensors"])
def test_a_missing_package_is_named(package, make_encoder, path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    for module in ("skops.io", "safetensors.numpy"):
        monkeypatch.delitem(__import__("sys").modules, module, raising=False)
    with pytest.raises(ImportError, match=rf"need {package}.*pip install skcl\[io\]"):
        skcl.save(make_encoder(), path)
