import pytest

from commbench.model import registry


@pytest.fixture
def installed(monkeypatch):
    """Return a function that adds plug-ins of a kind; loading one that is an error raises it."""

    def install(kind, plugins):
        names, load = registry.names, registry.load

        def loaded(asked, name):
            if asked != kind or name not in plugins:
                return load(asked, name)
            if isinstance(plugins[name], Exception):
                raise plugins[name]
            return plugins[name]

        more = {kind: [*plugins]}
        monkeypatch.setattr(registry, "names", lambda asked: names(asked) + more.get(asked, []))
        monkeypatch.setattr(registry, "load", loaded)

    return install
