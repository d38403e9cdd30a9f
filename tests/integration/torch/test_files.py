"""Files that are no checkpoints: refused in one sentence, and nothing in them is run."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import zipfile

import numpy as np
import pytest
import torch
from policies import fresh_policy

from bridges.torch import export_torchscript
from bridges.torch_files import read_torch_file, write_torch_file
from rlbotics_jax.envs import EnvironmentSpec


class Malicious:
    """A pickle that would make a file where it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_pickles_with_code_are_not_run(tmp_path):
    victim = tmp_path / "victim"
    torch.save({"actor_state_dict": Malicious(victim)}, tmp_path / "torch.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"actor_state_dict": Malicious(victim)}))
    for name, what in (
        ("torch.pt", "holds the Python object posix.system"),
        ("pickle.pt", "is no file that torch.save"),
    ):
        with pytest.raises(ValueError, match=what) as error:
            read_torch_file(tmp_path / name)
        assert len(str(error.value).splitlines()) == 1
    assert not victim.exists()


def test_whole_modules_and_numpy_scalars_are_refused_by_name(tmp_path):
    torch.save(torch.nn.Linear(2, 1), tmp_path / "module.pt")
    with pytest.raises(ValueError, match="holds the Python object torch.nn.modules.linear.Linear"):
        read_torch_file(tmp_path / "module.pt")
    torch.save({"best_metric": np.float64(3.0)}, tmp_path / "numpy.pt")
    with pytest.raises(ValueError, match=r"holds the Python object numpy\.\S*scalar"):
        read_torch_file(tmp_path / "numpy.pt")


def test_torchscript_is_told_from_a_checkpoint(tmp_path):
    torch.jit.trace(torch.nn.Linear(2, 1), torch.zeros(1, 2)).save(tmp_path / "policy.pt")
    with pytest.raises(ValueError, match=r"is a TorchScript module, .* give a checkpoint, such as model_best.pt"):
        read_torch_file(tmp_path / "policy.pt")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x02}q\x00.garbage", bytes(1000)])
def test_other_files_and_damaged_ones(content, tmp_path):
    (tmp_path / "file.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"'.*file.pt' is no file that torch.save wrote, or is damaged"):
        read_torch_file(tmp_path / "file.pt")


def test_torn_and_foreign_archives(tmp_path):
    torch.save({"a": torch.zeros(100)}, tmp_path / "whole.pt")
    (tmp_path / "torn.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:-200])
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("readme.txt", "text")
    for name in ("torn.pt", "other.pt"):
        with pytest.raises(ValueError, match="is no file that torch.save wrote, or is damaged"):
            read_torch_file(tmp_path / name)


def test_a_tensor_alone_is_no_checkpoint(tmp_path):
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(ValueError, match="holds a Tensor, not the mapping that a checkpoint is"):
        read_torch_file(tmp_path / "tensor.pt")


def test_values_come_back_as_numpy(tmp_path):
    half = torch.tensor([0.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    written = {"half": half, "count": torch.tensor(2**40), "list": [torch.ones(2, 3)], "score": 1.5, "none": None}
    values = read_torch_file(write_torch_file(written, tmp_path / "folder" / "file.pt"))
    np.testing.assert_array_equal(values["half"], np.array([0.5, -2.0], np.float32))
    assert values["count"] == 2**40 and values["list"][0].shape == (2, 3)
    assert (values["score"], values["none"]) == (1.5, None)


def test_tensors_that_are_no_plain_arrays_are_left_as_they_are(tmp_path):
    torch.save({"sparse": torch.eye(3).to_sparse()}, tmp_path / "file.pt")
    assert isinstance(read_torch_file(tmp_path / "file.pt")["sparse"], torch.Tensor)


@contextlib.contextmanager
def limited(kind, limit):
    """A limit of the operating system on this process, as a full disk or too many open files would be."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


@pytest.mark.parametrize("existing", [None, b"before"])
def test_a_full_disk_costs_the_file_and_not_the_process(existing, tmp_path):
    spec = EnvironmentSpec({"observation": (2,)}, 1, None, None, 10, 0.1)
    policy = fresh_policy(spec)
    for name, write in (
        ("model.pt", lambda path: write_torch_file({"a": torch.zeros(9000)}, path)),
        ("policy.pt", lambda path: export_torchscript(policy, path)),
    ):
        path = tmp_path / name
        if existing is not None:
            path.write_bytes(existing)
        with limited(resource.RLIMIT_FSIZE, 8192), pytest.raises(OSError, match="File too large"):
            write(path)
        assert (path.read_bytes() if path.exists() else None) == existing
    assert len(list(tmp_path.iterdir())) == (0 if existing is None else 2)


def test_a_file_that_cannot_be_opened_keeps_the_reason(tmp_path):
    path = write_torch_file({}, tmp_path / "file.pt")
    with limited(resource.RLIMIT_NOFILE, 3), pytest.raises(OSError, match="Too many open files"):
        read_torch_file(path)


def test_versions_of_torch_that_run_code_are_not_used(tmp_path, monkeypatch):
    write_torch_file({}, tmp_path / "file.pt")
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(ImportError, match="torch 2.5.1.* update it with: pip install --upgrade torch"):
        read_torch_file(tmp_path / "file.pt")
