"""The API page is that of the code, and the index leads to every page."""

import importlib.util
import textwrap
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def make_api():
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_api_page_is_up_to_date(make_api):
    assert make_api.PAGE.read_text(encoding="utf-8") == make_api.make_page(), "run python docs/make_api.py"


def test_the_index_leads_to_every_page():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.glob("*.md") if page.name != "index.md" and f"]({page.name})" not in index] == []


def test_an_entry_has_the_signature_and_the_first_paragraph(make_api, tmp_path):
    (tmp_path / "jaxrl").mkdir()
    source = '''
        """About ``it``.

        Not this."""

        def public(x: int | None = None, *, y) -> str:
            """Uses :func:`~a.b` and
            ``c``.

            Not this either.
            """

        def _private(): ...

        class Pair(NamedTuple):
            """Two."""
            left: Array
            right: int = 3
            def swapped(self, twice=False): ...
    '''
    path = tmp_path / "jaxrl" / "sub.py"
    path.write_text(textwrap.dedent(source))
    assert make_api.describe_module(path, tmp_path).split("\n") == [
        "## jaxrl.sub",
        "",
        "About `it`.",
        "",
        "**`public(x: int | None=None, *, y) -> str`**",
        "",
        "Uses `a.b` and `c`.",
        "",
        "**`Pair(left, right=3)`**",
        "",
        "Two.",
        "",
        "Methods: `swapped(twice=False)`.",
        "",
    ]
