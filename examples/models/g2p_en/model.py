"""The grapheme-to-phoneme model of g2p-en in PyTorch, with the package's weights: python model.py g2p_en.ff"""

import importlib.util
import sys

import numpy as np
import torch
from torch import Tensor, nn

import fourfold

LETTERS = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
OTHERS = "B CH D DH F G HH JH K L M N NG P R S SH T TH UW V W Y Z ZH"
PHONEMES = ["<pad>", "<unk>", "<s>", "</s>", *sorted([v + s for v in VOWELS.split() for s in "012"] + OTHERS.split())]


def letters(words: list[str]) -> Tensor:
    """Words in lower case, each with </s> at its end, and padded, (words, letters)."""
    rows = [torch.tensor([LETTERS.index(c) if c in LETTERS else 1 for c in word] + [2]) for word in words]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class G2p(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc_emb, self.enc = nn.Embedding(len(LETTERS), 256), nn.GRU(256, 256, batch_first=True)
        self.dec_emb, self.dec, self.fc = nn.Embedding(74, 3 * 256), nn.Linear(256, 3 * 256), nn.Linear(256, 74)

    def step(self, state: tuple[Tensor, Tensor], _: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """A GRU cell, whose products with the embeddings are the rows of dec_emb, and the likeliest phoneme."""
        (r, z, n), (r_h, z_h, n_h) = self.dec_emb(state[1]).chunk(3, 1), self.dec(state[0]).chunk(3, 1)
        n, z = (n + (r + r_h).sigmoid() * n_h).tanh(), (z + z_h).sigmoid()
        h = n + z * (state[0] - n)
        probability, phoneme = self.fc(h).softmax(1).max(1)
        return (h, phoneme), (phoneme, probability)

    def forward(self, letters: Tensor) -> tuple[Tensor, ...]:
        """(words, letters) -> indices of phonemes, until </s>, and their probabilities, both (words, 20)."""
        ends = torch.arange(letters.shape[0]), (letters == 2).int().argmax(1)
        state = self.enc(self.enc_emb(letters))[0][ends], torch.full_like(letters[:, 0], PHONEMES.index("<s>"))
        return tuple(y.t() for y in fourfold.scan(self.step, state, torch.zeros(20))[1])


def pretrained() -> G2p:
    (folder,) = importlib.util.find_spec("g2p_en").submodule_search_locations
    weights, model = {k: torch.tensor(w) for k, w in np.load(f"{folder}/checkpoint20.npz").items()}, G2p()
    weights["dec_emb"] = nn.functional.linear(weights["dec_emb"], weights.pop("dec_w_ih"), weights.pop("dec_b_ih"))
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    return model.eval().requires_grad_(False)


def save(path: str) -> None:
    model, sizes = pretrained(), {k: torch.export.Dim(n, min=1, max=4096) for k, n in enumerate(("words", "letters"))}
    fourfold.optimize(model)  # torch.export takes torch's GRU with any number of steps for one with a constant number
    fourfold.save(torch.export.export(model, (letters(["a", "word"]),), dynamic_shapes=(sizes,)), path)


if __name__ == "__main__":
    save(sys.argv[1])
