import re
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import builders
import pytest
from processes import invoke

from commbench.backends.backend import Backend
from commbench.errors import UnavailableError, UnknownNameError
from commbench.launchers.launcher import Launcher
from commbench.model import registry
from commbench.workloads.workload import Workload


@pytest.fixture
def install(monkeypatch):
    """Return a function that installs entry points of the group ``commbench.backends``."""

    def pretend(kind="backend", **values):
        points = EntryPoints(
            EntryPoint(name, value, f"commbench.{kind}s") for name, value in values.items()
        )
        monkeypatch.setattr(
            registry, "_points", lambda kind: points.select(group=f"commbench.{kind}s")
        )

    return pretend


@pytest.mark.parametrize(
    ("kind", "base"), [("backend", Backend), ("workload", Workload), ("launcher", Launcher)]
)
def test_every_plugin_is_a_class_of_its_kind_with_its_name(kind, base):
    assert registry.names(kind)
    for name in registry.names(kind):
        plugin = registry.load(kind, name)
        assert issubclass(plugin, base)
        assert getattr(plugin, "head", None) == name or plugin.name == name


@pytest.mark.parametrize("kind", ["plot", "report"])
def test_every_plot_and_report_can_be_called(kind):
    assert registry.names(kind)
    assert all(callable(registry.load(kind, name)) for name in registry.names(kind))


def test_names_are_sorted_and_known_without_an_import():
    code = (
        "import sys; from commbench.model import registry;"
        "kinds = ('backend', 'workload', 'launcher', 'plot', 'section', 'report');"
        "assert all((n := registry.names(k)) and n == sorted(n) for k in kinds);"
        "print({'.'.join(m.split('.')[:2]) for m in sys.modules if m.startswith('commbench.')})"
    )
    modules = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert eval(modules) == {"commbench.errors", "commbench.model"}


def test_a_third_partys_entry_point_is_loaded_by_name(install):
    install("plot", mine="collections:OrderedDict")
    assert registry.names("plot") == ["mine"]
    assert registry.load("plot", "mine").__name__ == "OrderedDict"


def test_an_unknown_name_lists_what_is_installed(install):
    install(mine="collections:OrderedDict", yours="collections:OrderedDict")
    with pytest.raises(UnknownNameError, match=r"unknown backend 'min'.*'mine'.*mine, yours"):
        registry.load("backend", "min")


def test_a_group_without_entry_points_has_no_names():
    with pytest.raises(UnknownNameError, match="unknown nonsense 'x'; known: none"):
        registry.load("nonsense", "x")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_package_that_is_not_there", "No module named 'a_package_that_is_not_there'"),
        ("raise OSError('libcudart.so.12: cannot open shared object file')", "libcudart.so.12"),
        ("raise RuntimeError('cannot load MPI library')", "cannot load MPI library"),
        ("", "has no attribute 'Thing'.*To have it: correct the entry point"),
        ("1 / 0", r"ZeroDivisionError: division by zero, .*broken_plugin.py:1\)"),
        ("x = (", "SyntaxError: .*line 1.*To have it: correct its code"),
        ("Thing = dict", "is no class of commbench.Backend"),
        ("from commbench import Backend as Thing", "has no environment, no .*, no head"),
        ("from commbench.backends.tcp import TcpBackend as Thing", "has the head 'tcp'"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_unavailable_with_the_reason(
    source, reason, install, tmp_path, monkeypatch
):
    (tmp_path / "broken_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_plugin", raising=False)
    install(mine="broken_plugin:Thing")
    with pytest.raises(UnavailableError, match=f"backend mine is unavailable.*{reason}"):
        registry.load("backend", "mine")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes a package with one entry point, `mine` unless named."""

    def write(kind, source, name="mine"):
        (tmp_path / "my_plugin.py").write_text(source)
        (info := tmp_path / "my_package-1.0.dist-info").mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[commbench.{kind}s]\n{name} = my_plugin:Thing\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "my_plugin", raising=False)
        registry._installed.cache_clear()

    yield write
    registry._installed.cache_clear()


@pytest.mark.parametrize(
    ("kind", "source", "name", "words"),
    [
        ("workload", "from commbench import ClusterWorkload as Thing", "mine", "has no build"),
        ("launcher", "class Thing: pass", "mine", "is no class of commbench.Launcher"),
        ("report", "Thing = 5", "mine", "is no function of a run"),
        ("rule", "Thing = print", "mine", "is no commbench.Rule"),
        ("section", "Thing = print", "mine", "is no commbench.Section"),
        ("workload", "", "merge", "commbench and my-package have an entry point of this name"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said_with_its_package(package, kind, source, name, words):
    package(kind, source, name)
    with pytest.raises(UnavailableError, match=f"{kind} {name} is unavailable.*{words}") as raised:
        registry.load(kind, name)
    assert "my-package" in str(raised.value)
    listed = " ".join(invoke("list").stdout.split())
    assert f"{name} unavailable: {' '.join(raised.value.reason.split())}" in listed


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def Thing(run): return 1 / 0", "raised ZeroDivisionError: division by zero, .*:1"),
        ("def Thing(run): return None", "returned None"),
        ("def Thing(): return ''", "raised TypeError: Thing.* takes 0 positional arguments"),
    ],
)
def test_a_format_that_fails_is_named(package, source, words, tmp_path):
    package("report", source)
    run = builders.written(tmp_path, [builders.case()], []).path
    result = invoke("report", run, "--format", "mine")
    assert result.exit_code == 2
    message = " ".join(result.stderr.split())
    assert re.search(f"report mine is unavailable: .* package my-package {words}", message)


def test_rules_that_cannot_be_imported_are_left_out(install):
    install("rule", broken="no_such_module:RULE")
    assert registry.loadable("rule") == {}


def test_a_rule_that_cannot_be_imported_is_no_rule_to_fail_on(install, tmp_path):
    install("rule", broken="no_such_module:RULE")
    run = builders.written(tmp_path, [builders.case()], []).path
    result = invoke("diagnose", run, "--fail-on", "broken")
    assert result.exit_code == 2
    assert "rule broken is unavailable" in " ".join(result.stderr.split())
