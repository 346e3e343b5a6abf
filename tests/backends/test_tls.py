"""tls encrypts what tcp does not."""

import sys
from pathlib import Path

import processes
import pytest

from commbench.backends import parse, tls
from commbench.conformance import check_backend
from commbench.errors import UnavailableError, UsageError
from commbench.harness import vary
from commbench.harness.cases import cases_for
from commbench.model import ClusterSpec


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    pytest.importorskip("cryptography")
    given = ("--rows", 20_000, "--launches", 1, "--iterations", 1, "--output")
    results = tmp_path_factory.mktemp("results")
    return processes.measured("merge", "--backends", "tls", *given, results)


def test_workers_talk_by_tls_and_its_cipher_is_the_evidence(run):
    assert set(run.addresses["address"].str.partition("://")[0]) == {"tls"}
    assert set(run.transports["transport"]) == {"tls/lo"}
    assert run.transports["evidence"].str.contains("TLSv1").all()
    assert run.samples["verified"].all()
    assert run.wire["nbytes"].sum() > 0


def test_the_key_is_in_no_file_of_the_run(run):
    secret = b"PRIVATE KEY"
    files = [path for path in Path(run.path).rglob("*") if path.is_file()]
    assert files
    assert not any(secret in path.read_bytes() for path in files)


def test_without_cryptography_it_is_unavailable(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    tls._credentials.cache_clear()
    assert "cryptography" in parse("tls").unavailable("cpu").remedy
    with pytest.raises(UnavailableError, match="pip install cryptography"):
        check_backend("tls")
    varied = vary.settings(["distributed.comm.compression=null|lz4"])
    assert len([*vary.combinations(ClusterSpec(), varied, ["tcp", "tls"])]) == 4


@pytest.mark.parametrize(
    ("launcher", "given", "message"),
    [
        ("ssh", {"hosts": ("a", "b", "c")}, "where others can read it"),
        ("slurm", {}, "where others can read it"),
        ("external", {"scheduler": "tls://10.0.0.1:8786"}, "a running cluster has keys of its own"),
    ],
)
def test_its_key_is_not_given_to_other_hosts(launcher, given, message):
    with pytest.raises(UsageError, match=message):
        cases_for("merge", ["tls"], {}, ClusterSpec(launcher=launcher, **given))
