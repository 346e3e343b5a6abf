import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import builders
import pytest
from processes import invoke

from commbench.backends.base import Backend
from commbench.errors import UnavailableError, UnknownNameError
from commbench.launchers.base import Launcher
from commbench.model import registry
from commbench.workloads.base import Workload


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
    install(mine="collections:OrderedDict")
    assert registry.names("backend") == ["mine"]
    assert registry.load("backend", "mine").__name__ == "OrderedDict"


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
        ("", "has no attribute 'Thing'"),
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


def test_an_error_in_a_plugins_code_is_not_hidden(install, tmp_path, monkeypatch):
    (tmp_path / "wrong_plugin.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    install(mine="wrong_plugin:Thing")
    with pytest.raises(ZeroDivisionError):
        registry.load("backend", "mine")


def test_rules_that_cannot_be_imported_are_left_out(install):
    install("rule", broken="no_such_module:RULE")
    assert registry.loadable("rule") == {}


def test_a_rule_that_cannot_be_imported_is_no_rule_to_fail_on(install, tmp_path):
    install("rule", broken="no_such_module:RULE")
    run = builders.written(tmp_path, [builders.case()], []).path
    result = invoke("diagnose", run, "--fail-on", "broken")
    assert result.exit_code == 2
    assert "rule broken is unavailable" in " ".join(result.stderr.split())
