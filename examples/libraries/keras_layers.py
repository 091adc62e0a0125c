"""keras.layers.LSTM and GRU on Keras' torch backend: a sequence in one call, instead of a loop over its steps.

KERAS_BACKEND=torch python examples/libraries/keras_layers.py               # trains a small model
KERAS_BACKEND=torch python examples/libraries/keras_layers.py --library     # by Keras alone, for comparison
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import torch
from keras.src import backend
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import fourfold

THEIRS = {"lstm": backend.lstm, "gru": backend.gru}


def lstm(inputs: Any, h: Any, c: Any, mask: Any, kernel: Any, recurrent_kernel: Any, bias: Any, **options: Any) -> Any:
    """Keras' backend function of that name. kernel: (input_size, 4 * units), gates in torch's order."""
    if not supported(mask, **options):
        return THEIRS["lstm"](inputs, h, c, mask, kernel, recurrent_kernel, bias, **options)
    w_ih, w_hh, b = (w if w is None else backend.convert_to_tensor(w) for w in (kernel, recurrent_kernel, bias))
    return run(fourfold.lstm, inputs, (h, c), mask, (w_ih.T, w_hh.T, b), **options)


def gru(inputs: Any, h: Any, mask: Any, kernel: Any, recurrent_kernel: Any, bias: Any, **options: Any) -> Any:
    """kernel: (input_size, 3 * units), gates in the order z, r, h; torch's is r, z, h."""
    if not supported(mask, **options):
        return THEIRS["gru"](inputs, h, mask, kernel, recurrent_kernel, bias, **options)
    weights = (w if w is None else backend.convert_to_tensor(w) for w in (kernel, recurrent_kernel, bias))
    w_ih, w_hh, b = (w if w is None else torch.cat([w.chunk(3, -1)[k] for k in (1, 0, 2)], -1) for w in weights)
    return run(fourfold.gru, inputs, (h,), mask, (w_ih.T, w_hh.T, *((None, None) if b is None else b)), **options)


def supported(mask: Any, activation: Any, recurrent_activation: Any, reset_after: bool = True, **options: Any) -> bool:
    """A mask must be one of padding on the right; the results in its steps would be needed with return_sequences."""
    if activation is not keras.activations.tanh or recurrent_activation is not keras.activations.sigmoid:
        return False
    if mask is None:
        return reset_after and options.get("batch_first", True)
    if mask.dtype != torch.bool:
        return False
    padded = not options.get("return_sequences") and not options.get("go_backwards") and reset_after
    return padded and bool(mask[:, 0].all()) and not bool((mask[:, 1:] & ~mask[:, :-1]).any())


def run(
    operator: Callable[..., Any], inputs: Any, states: Sequence[Any], mask: Any, parameters: Any, **options: Any
) -> Any:
    x, *states = (backend.convert_to_tensor(t).to(parameters[0].dtype) for t in (inputs, *states))
    if mask is None:
        x = x.transpose(0, 1)
        output, last = operator(x.flip(0) if options.get("go_backwards") else x, *states, *parameters)
        last = [last] if isinstance(last, Tensor) else list(last)
    else:
        packed = pack_padded_sequence(x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        states = [state[packed.sorted_indices] for state in states]
        output, last = operator(packed.data, *states, *parameters, batch_sizes=packed.batch_sizes)
        last = [s[packed.unsorted_indices] for s in ([last] if isinstance(last, Tensor) else last)]
    return last[0], output.transpose(0, 1) if options.get("return_sequences") else last[0].unsqueeze(1), last


def install() -> None:
    """Gives Keras these functions. Models, weights and saved files stay as they are."""
    backend.lstm, backend.gru = lstm, gru


def uninstall() -> None:
    backend.lstm, backend.gru = THEIRS["lstm"], THEIRS["gru"]


# The adapter ends here. What follows uses it.


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """The loss of each epoch: whether a 7 is among the first numbers of sequences that are padded to 60."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="store_true", help="train by Keras alone")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(0)
    numbers, lengths = torch.randint(1, 20, (512, 60)), torch.randint(20, 61, (512, 1))
    numbers[torch.arange(60) >= lengths] = 0
    found = (numbers[:, :10] == 7).any(1).float()
    layers = [keras.layers.Embedding(20, 16, mask_zero=True), keras.layers.LSTM(64), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    (uninstall if options.library else install)()
    begin = thread_time()
    losses = model.fit(numbers, found, batch_size=32, epochs=options.epochs, verbose=0).history["loss"]
    uninstall()
    print(f"{thread_time() - begin:.1f} s; losses {', '.join(f'{loss:.4f}' for loss in losses)}")
    return losses


if __name__ == "__main__":
    main()
