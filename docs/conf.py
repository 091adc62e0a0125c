"""The documentation site: `make docs`. Nothing is fetched, neither when it is built nor when it is read."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

import fourfold  # noqa: E402  the API reference is made of its docstrings

project = "fourfold"
release = version = fourfold.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "commands",
    "docstrings",
    "elsewhere",
    "repository",
]
exclude_patterns = ["_ext", "_static"]
nitpicky = True
smartquotes = False  # docstrings have c' and backend="fourfold"

# The pages are read on GitHub too, whose anchors these are.
myst_heading_anchors = 4
highlight_language = "text"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"fourfold {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "_ext" / "scorer.js")
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
