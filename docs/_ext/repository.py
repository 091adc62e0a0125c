"""Links to files outside docs, which GitHub shows: each file that a page links becomes a page of the site, and a folder
becomes a page that lists its files. What the API reference describes is linked to its definition."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import reduce
from html import escape
from pathlib import Path

from definitions import PACKAGE, place_of
from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
UNKNOWN_TO_PYGMENTS = {".cu": "cpp", ".cuh": "cpp", ".metal": "cpp", ".mm": "objective-c"}


class Links(SphinxTransform):
    """Before Sphinx copies linked files as downloads. A link to a file that isn't there stays as it is: MyST warns."""

    default_priority = 300

    def apply(self) -> None:
        kinds = addnodes.download_reference, addnodes.pending_xref
        for node in list(self.document.findall(lambda each: isinstance(each, kinds))):
            if node.get("reftype") != "myst":
                continue
            target = node["reftarget"]
            if node.get("refdomain") == "doc":
                if not target.startswith("/"):
                    continue
                target += ".md"  # MyST takes Markdown outside docs for a page
            path = self.path_of(target.partition("#")[0])
            if path is None:
                continue
            linked(self.env).setdefault(self.env.docname, set()).add(path)
            uri = self.app.builder.get_relative_uri(self.env.docname, page_of(path))
            text = node[0] if node.get("refexplicit") else nodes.literal(text=path)
            node.replace_self(nodes.reference("", "", text, internal=True, refuri=uri))

    def path_of(self, target: str) -> str | None:
        """From the repository's root. A page that includes a file of the root has its links."""
        if not target:
            return None
        for folder in (DOCS / self.env.docname).parent, ROOT:
            path = (folder / target).resolve()
            if path.exists() and path.is_relative_to(ROOT) and not path.is_relative_to(DOCS):
                return path.relative_to(ROOT).as_posix()
        return None


def link_definitions(app: Sphinx, document: nodes.document) -> None:
    for signature in document.findall(addnodes.desc_signature):
        if not signature.get("module"):
            continue
        module = importlib.import_module(signature["module"])
        names = signature["fullname"].split(".")  # of a TypedDict's entries there is no attribute
        place = place_of(reduce(lambda each, name: getattr(each, name, None), names, module))
        if place is None:
            continue
        path, line = f"python/fourfold/{place[0].relative_to(PACKAGE).as_posix()}", place[1]
        linked(app.env).setdefault(app.env.docname, set()).add(path)
        uri = f"{app.builder.get_relative_uri(app.env.docname, page_of(path))}#line-{line}"
        text = nodes.inline("", "[source]", classes=["viewcode-link"])
        signature += nodes.reference("", "", text, internal=False, refuri=uri)


def linked(env: BuildEnvironment) -> dict[str, set[str]]:
    """By page, what it links."""
    if not hasattr(env, "repository_links"):
        env.repository_links = {}
    return env.repository_links


def page_of(path: str) -> str:
    return f"source/{path}"


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    linked(env).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, docnames: list[str], other: BuildEnvironment) -> None:
    linked(env).update({name: linked(other)[name] for name in docnames if name in linked(other)})


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, str], str]]:
    if app.builder.format != "html":
        return
    wanted = set().union(*linked(app.env).values())
    for folder in [path for path in wanted if (ROOT / path).is_dir()]:
        wanted.update(f"{folder}/{name}" for name in files_in(ROOT / folder))
    for path in sorted(wanted):
        body = listing(app, path) if (ROOT / path).is_dir() else contents(app, path)
        yield page_of(path), {"title": path, "body": f"<h1><code>{escape(path)}</code></h1>{body}"}, "page.html"


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))


def listing(app: Sphinx, path: str) -> str:
    items = []
    for name in files_in(ROOT / path):
        uri = app.builder.get_relative_uri(page_of(path), page_of(f"{path}/{name}"))
        items.append(f'<li><a class="reference internal" href="{escape(uri)}"><code>{escape(name)}</code></a></li>')
    return f"<ul>{''.join(items)}</ul>"


def contents(app: Sphinx, path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    anchors = {"linenos": "inline", "lineanchors": "line"}
    return app.builder.highlighter.highlight_block(text, language_of(path), location=path, **anchors)


def language_of(path: str) -> str:
    known = UNKNOWN_TO_PYGMENTS.get(Path(path).suffix)
    if known is not None:
        return known
    if path.endswith(".h"):
        return "cpp"  # Pygments takes it for C
    try:
        return get_lexer_for_filename(path).aliases[0]
    except ClassNotFound:
        return "text"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(Links)
    app.connect("doctree-read", link_definitions)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
