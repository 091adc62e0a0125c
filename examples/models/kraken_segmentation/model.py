"""blla, kraken's segmentation of a page into lines and regions, with the weights of the package kraken.

python model.py blla.ff
"""

import importlib.util
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import fourfold


def along_rows(lstm: nn.Module, x: Tensor) -> Tensor:
    return lstm(x.squeeze(0).permute(1, 2, 0))[0].permute(2, 0, 1).unsqueeze(0)


class Segmentation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 64, 7, 2), (64, 128, 3, 2), (128, 128, 3, 1), (128, 256, 3, 1), (256, 256, 3, 1), (64, 32, 1, 1))
        convs = [nn.Sequential(nn.Conv2d(a, b, k, s, k // 2), nn.ReLU(), nn.GroupNorm(32, b)) for a, b, k, s in sizes]
        lstms = [nn.LSTM(size, 32, batch_first=True, bidirectional=True) for size in (256, 64, 32, 64)]
        self.layers = nn.ModuleList((nn.Sequential(*convs[:5]), *lstms[:2], convs[5], *lstms[2:], nn.Conv2d(64, 4, 1)))

    def forward(self, page: Tensor) -> Tensor:
        """Inverted colours, 0 to 1, (1, 3, height, width) -> probabilities of 4 classes, (1, 4, height, width)."""
        features, rows1, columns1, middle, columns2, rows2, out = self.layers
        x = middle(along_rows(columns1, along_rows(rows1, features(page)).mT).mT)
        x = out(along_rows(rows2, along_rows(columns2, x.mT).mT))
        return nn.functional.interpolate(x, page.shape[2:]).sigmoid()


def pretrained() -> nn.Module:
    kraken, coreml = (importlib.util.find_spec(n).submodule_search_locations[0] for n in ("kraken", "coremltools"))
    spec = importlib.util.spec_from_file_location("coreml", f"{coreml}/proto/__init__.py")
    sys.modules["coreml"] = importlib.util.module_from_spec(spec)  # alone: coremltools imports more packages
    file = importlib.import_module("coreml.Model_pb2").Model.FromString(Path(kraken, "blla.mlmodel").read_bytes())
    model, weights, gates = Segmentation(), [], ("inputGate", "forgetGate", "blockInput", "outputGate")
    for layer in file.neuralNetwork.layers:
        weights += [w.floatValue for w in (layer.convolution.weights, layer.convolution.bias, *layer.custom.weights)]
        for lstm in layer.biDirectionalLSTM.weightParams:
            for kind in ("WeightMatrix", "RecursionMatrix", "BiasVector"):
                weights.append([value for gate in gates for value in getattr(lstm, gate + kind).floatValue])
            weights.append([0.0] * 128)  # torch's second bias
    for parameter, values in zip(model.requires_grad_(False).parameters(), filter(len, weights), strict=True):
        parameter.copy_(torch.tensor(list(values)).view_as(parameter))
    return model.eval()


def save(path: str) -> None:
    fourfold.optimize(model := pretrained())  # its LSTMs then take any number of steps
    size = {2: torch.export.Dim("height", min=32, max=4096), 3: torch.export.Dim("width", min=32, max=4096)}
    fourfold.save(torch.export.export(model, (torch.zeros(1, 3, 320, 256),), dynamic_shapes=(size,)), path)


if __name__ == "__main__":
    save(sys.argv[1])
