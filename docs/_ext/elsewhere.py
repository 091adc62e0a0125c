"""References to names of PyTorch's and Python's documentation, without their inventories, which would have to be
fetched: each rule says which names a page has. Any other name that the site doesn't have is an error."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

TORCH, PYTHON = "https://docs.pytorch.org/docs/stable/", "https://docs.python.org/3/library/"
RULES = (
    (r"torch\.Tensor", TORCH + r"tensors.html#\g<0>"),
    (r"torch\.(?:device|dtype)", TORCH + r"tensor_attributes.html#\g<0>"),
    (r"torch\.nn\.modules\.module\.Module", TORCH + "generated/torch.nn.Module.html"),
    (r"torch\.nn\.(?:functional\.|utils\.rnn\.)?\w+", TORCH + r"generated/\g<0>.html"),
    (r"torch\.export\.exported_program\.(\w+)", TORCH + r"export/api_reference.html#torch.export.\1"),
    (r"torch\.fx\.graph_module\.(\w+)", TORCH + r"fx.html#torch.fx.\1"),
    (r"(collections\.abc|contextlib|os|pathlib)\.\w+", PYTHON + r"\1.html#\g<0>"),
)
# Type variables, and what only explain passes to the backend.
PLAIN = {"fourfold.freezing.Model", "fourfold.scanning.scan.Carry", "fourfold.compiler.pipeline.record.Record"}


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    if target in PLAIN:
        return content
    for names, address in RULES:
        match = re.fullmatch(names, target)
        if match is not None:
            return nodes.reference("", "", content, internal=False, refuri=match.expand(address))
    if "." not in target:  # in the docstring of a class whose module is private
        domain = env.domains.python_domain
        full = f"fourfold.{target}"
        return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], full, node, content)
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
