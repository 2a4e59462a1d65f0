# SPDX-License-Identifier: Apache-2.0
"""The models that ``weir train`` knows by name, a module for each kind, and what is counted of them."""

import zlib
from collections.abc import Callable
from typing import Final

import numpy as np
from torch import nn

from weir.train.data import MODULES, OUTPUTS, WORDS
from weir.train.models.autoencoder import Autoencoder
from weir.train.models.dlrm import Dlrm
from weir.train.models.gnn import Gcn
from weir.train.models.gpt import SHAPES, Gpt
from weir.train.models.images import Mlp, ResNet18, SmallCnn
from weir.train.models.lstm import ByteLstm
from weir.train.models.unet import UNet
from weir.train.models.vit import VisionTransformer
from weir.train.models.words import WordBag, WordLm

_MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "resnet18": ResNet18,
    "cnn": SmallCnn,
    "mlp": Mlp,
    "lm": lambda: WordLm(WORDS, OUTPUTS),
    "bag": lambda: WordBag(WORDS, MODULES),
    "gpt": lambda: Gpt(SHAPES["small"]),
    "gpt-10m": lambda: Gpt(SHAPES["medium"]),
    "gpt2-small": lambda: Gpt(SHAPES["gpt2"]),
    "gpt2-medium": lambda: Gpt(SHAPES["gpt2-medium"]),
    "lstm": ByteLstm,
    "unet": UNet,
    "gnn": Gcn,
    "dlrm": Dlrm,
    "vit": VisionTransformer,
    "autoencoder": Autoencoder,
}


def make_model(name: str) -> nn.Module:
    """Return the model of a name of ``weir.train.config``, its parameters drawn from torch's generator."""
    return _MODELS[name]()


def parameter_count(model: nn.Module) -> int:
    """Return number of trained parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def parameter_checksum(model: nn.Module) -> int:
    """Return 64 bits that almost surely differ when any bit of any parameter differs: CRC-32 and a word sum.

    Cheap enough for every step: about 40 ms for ResNet-18.
    """
    crc, total = 0, 0
    for parameter in model.parameters():
        words = parameter.detach().flatten().numpy().view(np.uint32)
        crc = zlib.crc32(words.data, crc)
        total += int(words.sum(dtype=np.uint64))
    return crc << 32 | total & 0xFFFFFFFF
