import re
import types

import pages
import pytest

import commbench


def test_the_page_documents_every_public_name():
    text = (pages.ROOT / "docs/api.md").read_text()
    documented = {
        re.split(r"\W", name)[0] for name in re.findall(r"`([A-Za-z_]+(?:\([^`]*\))?)`", text)
    }
    assert set(commbench.__all__) - documented == set()


@pytest.mark.parametrize("name", commbench.__all__)
def test_every_public_name_is_importable_and_has_a_docstring(name):
    public = getattr(commbench, name)
    assert public.__doc__
    # A submodule of another package would only be there if something else had imported it.
    assert not isinstance(public, types.ModuleType) or public.__name__ == f"commbench.{name}"


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.name)
def test_pages_import_public_names_only(path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
    assert re.findall(r"(?:from|import) commbench\.\S+.*", code) == []
