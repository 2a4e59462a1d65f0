# SPDX-License-Identifier: Apache-2.0
"""Real data that comes with the dependencies: handwritten digits, and the text of Python's own library."""

import functools
import importlib.util
import re
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IMAGE_SIZE: Final = 16
WORDS: Final = 16384  # vocabulary of the language model's input; index 0 stands for every rarer word
OUTPUTS: Final = 2048  # what it predicts: the most frequent of them; index 0 stands for all others
LINE: Final = 33  # words in one line: 32 inputs, each with its successor as target
_TEXT_LINES: Final = 4096
_HELD_OUT: Final = 8  # one line in this many
BYTES: Final = 64  # in one line of a language model of bytes, or pairs in one of pairs
_BYTE_LINES: Final = 12_800  # less than the library has, so that lines do not overlap
_HELD_OUT_BYTES: Final = 25
PAIRS: Final = 50257  # tokens of a language model of two bytes each: as many as GPT-2 has
_PAIR_LINES: Final = 6_176
_HELD_OUT_PAIRS: Final = 193  # few: a score for each of 50,257 tokens takes memory
_WORD = re.compile(r"[A-Za-z_]+|[0-9]+|\n|[^\sA-Za-z0-9_]")

# Large modules of the standard library that every supported Python has.
_MODULES: Final = (
    "_pydecimal", "_pyio", "argparse", "ast", "calendar", "configparser", "dataclasses", "datetime",
    "difflib", "doctest", "enum", "fractions", "functools", "gettext", "heapq", "inspect", "ipaddress",
    "locale", "mailbox", "optparse", "os", "pathlib", "pdb", "pickle", "pickletools", "platform", "plistlib",
    "pydoc", "random", "shutil", "smtplib", "socket", "ssl", "statistics", "subprocess", "tarfile",
    "tempfile", "textwrap", "threading", "traceback", "turtle", "typing", "uuid", "zipfile",
)  # fmt: skip
MODULES: Final = len(_MODULES)  # what the bag of words tells apart


class TooFewSamplesError(ValueError):
    """The data makes no step of this many workers with such a batch each."""


@dataclass(frozen=True)
class Split:
    """Inputs and targets, first dimension the samples."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Dataset:
    """A fixed split into what is trained on and what is only measured on."""

    train: Split
    test: Split


@functools.cache
def digits(size: int = IMAGE_SIZE) -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits (8x8, UCI), enlarged to ``size``; one in five is held
    out.

    Images are float32 of shape (N, 1, size, size) with mean 0 and standard deviation 1.
    """
    pixels, numbers = _load_digits()
    images = torch.from_numpy(pixels.reshape(-1, 1, 8, 8))
    images = torch.nn.functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    images = (images - images.mean()) / images.std()
    targets = torch.from_numpy(numbers)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(targets)))
    cut = len(targets) // 5
    held, kept = order[:cut], order[cut:]
    return Dataset(
        train=Split(images[kept], targets[kept]),
        test=Split(images[held], targets[held]),
    )


def _load_digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return pixels, shape (1797, 64), and the digit of each image.

    From the file that scikit-learn's load_digits reads, if it is where it has always been: to import
    scikit-learn takes every worker a second and more.
    """
    package = importlib.util.find_spec("sklearn")
    folders = package.submodule_search_locations if package is not None else None
    path = Path(folders[0]) / "datasets" / "data" / "digits.csv.gz" if folders else None
    if path is not None and path.is_file():
        table = np.loadtxt(path, delimiter=",", dtype=np.float32)
        return np.ascontiguousarray(table[:, :-1]), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    found = load_digits()
    return found.data.astype(np.float32), found.target.astype(np.int64)


@functools.cache
def stdlib() -> Dataset:
    """Return words of Python's standard library in lines of 32, each word with its successor as target.

    inputs: int64 (N, 32) in [0, WORDS); targets: int64 (N, 32) in [0, OUTPUTS). The last eighth is held out.
    """
    numbers = _numbers("\n".join(_library().values()))
    lines = min(len(numbers) // LINE, _TEXT_LINES)
    starts = torch.arange(lines) * (len(numbers) // lines)
    table = numbers[starts[:, None] + torch.arange(LINE)]
    inputs = table[:, :-1].contiguous()
    targets = torch.where(table[:, 1:] < OUTPUTS, table[:, 1:], 0)
    cut = lines - lines // _HELD_OUT
    return Dataset(train=Split(inputs[:cut], targets[:cut]), test=Split(inputs[cut:], targets[cut:]))


@functools.cache
def library_bytes() -> Dataset:
    """Return bytes of Python's standard library in lines of 64, each with its successor as target.

    inputs, targets: int64 (N, 64) in [0, 256). One line in 25 is held out, all over the library.
    """
    text = np.frombuffer(_library_text(), np.uint8).astype(np.int64)
    return _lines(torch.from_numpy(text), _BYTE_LINES, _HELD_OUT_BYTES)


@functools.cache
def library_pairs() -> Dataset:
    """Return pairs of bytes of Python's standard library in lines of 64, each with its successor as target.

    inputs, targets: int64 (N, 64) in [0, PAIRS). One line in 193 is held out, all over the library.
    """
    return _lines(pairs_of(_library_text(), PAIRS), _PAIR_LINES, _HELD_OUT_PAIRS)


def pairs_of(text: bytes, vocabulary: int) -> Tensor:
    """Return a text as int64 tokens in [0, vocabulary), one for each two bytes."""
    pairs = torch.from_numpy(np.frombuffer(text, np.uint8, len(text) // 2 * 2).astype(np.int64)).view(-1, 2)
    return (pairs[:, 0] * 256 + pairs[:, 1]) % vocabulary


def _library_text() -> bytes:
    """Return the source text of all modules, one after the other."""
    return "\n".join(_library().values()).encode()


def _lines(text: Tensor, lines: int, held_out: int) -> Dataset:
    """Return lines of BYTES tokens, each with its successor as target, from all over a text.

    held_out: one line in that many is.
    """
    starts = torch.arange(lines) * (len(text) - BYTES - 1) // lines
    table = text[starts[:, None] + torch.arange(BYTES + 1)]
    held = torch.arange(lines) % held_out == 0
    return Dataset(
        train=Split(table[~held, :-1].contiguous(), table[~held, 1:].contiguous()),
        test=Split(table[held, :-1].contiguous(), table[held, 1:].contiguous()),
    )


@functools.cache
def restored_digits() -> Dataset:
    """Return ``digits`` with the images themselves as targets."""
    whole = digits()
    return Dataset(*(Split(part.inputs, part.inputs) for part in (whole.train, whole.test)))


@functools.cache
def modules() -> Dataset:
    """Return lines of 32 words of Python's standard library, with the number of each line's module as target.

    inputs: int64 (N, 32) in [0, WORDS); targets: int64 (N) in [0, MODULES). One line in eight is held out.
    """
    lines, targets = [], []
    for module, text in _library().items():
        numbers = _numbers(text)
        own = numbers[: len(numbers) // (LINE - 1) * (LINE - 1)].view(-1, LINE - 1)
        lines.append(own)
        targets.append(torch.full((len(own),), _MODULES.index(module)))
    inputs, labels = torch.cat(lines), torch.cat(targets)
    count = min(len(inputs), _TEXT_LINES)
    chosen = torch.arange(count) * len(inputs) // count
    held = torch.arange(count) % _HELD_OUT == 0
    return Dataset(
        train=Split(inputs[chosen[~held]], labels[chosen[~held]]),
        test=Split(inputs[chosen[held]], labels[chosen[held]]),
    )


def _numbers(text: str) -> Tensor:
    """Return the words of a text as numbers in [0, WORDS), int64."""
    ranks = _vocabulary()
    return torch.tensor([ranks.get(word, 0) for word in _WORD.findall(text)], dtype=torch.int64)


@functools.cache
def _vocabulary() -> dict[str, int]:
    words = Counter(_WORD.findall("\n".join(_library().values())))
    return {word: rank for rank, (word, _) in enumerate(words.most_common(WORDS - 1), start=1)}


@functools.cache
def _library() -> dict[str, str]:
    """Return the source texts of the modules that are here."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = {module: path for module in _MODULES if (path := folder / f"{module}.py").is_file()}
    if len(found) < len(_MODULES) // 2:
        raise FileNotFoundError(f"{folder} contains no source text of Python's standard library")
    return {module: path.read_text(encoding="utf-8") for module, path in found.items()}


def share(samples: int, rank: int, workers: int, batch: int, seed: int, epoch: int) -> list[Tensor]:
    """Return the batches of sample indices that ``rank`` trains on in this epoch: disjoint from other ranks'.

    Every rank gets the same number of batches, all of size ``batch``; what is left over sits out this epoch.
    Raises TooFewSamplesError when there is not one batch for each.
    """
    order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(samples))
    steps = samples // (batch * workers)
    if steps == 0:
        raise TooFewSamplesError(
            f"{samples:,} samples are too few for a step of {workers} workers x {batch}: use a smaller "
            "--batch-size"
        )
    bounds = [(step * workers + rank) * batch for step in range(steps)]
    return [order[bound : bound + batch] for bound in bounds]


def learning_rate(peak: float, step: int, steps: int) -> float:
    """Return the learning rate: linear warm-up to ``peak`` in a tenth of the steps, then linear decay to a
    tenth of it.
    """
    warm_up = max(1, steps // 10)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * (1 - 0.9 * (step - warm_up) / max(1, steps - warm_up))
