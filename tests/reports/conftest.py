import pytest

from commbench.model import registry


@pytest.fixture(scope="module")
def no_figures():
    """Save the time of drawing."""
    names = registry.names
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "names", lambda kind: [] if kind == "plot" else names(kind))
        yield
