"""From a captured graph to a compiled function: ``entry`` is torch's entry point, ``compilation`` has AOTAutograd
differentiate, ``compiled`` holds each compiled graph, and ``runtime`` selects what runs both."""
