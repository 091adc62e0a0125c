"""From a captured graph to a compiled function: ``entry`` is called by torch, ``compilation`` differentiates the graph
with AOTAutograd, ``compiled`` holds each compiled graph, and ``runtime`` selects what runs both."""
