# SPDX-License-Identifier: Apache-2.0
"""Sparse samples: which features each of them has.

They are one side of the bipartite graph whose other side are the parameters of a sparse linear model, one for
each feature (or for each bucket of a hash of the features, see `weir.host_agent.placement.hashing`).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_WORD: Final = re.compile(rb"[A-Za-z_][A-Za-z_0-9]+")
_MOST_FEATURES: Final = 1 << 31
_TEXT: Final = {
    ".py",
    ".pyi",
    ".txt",
    ".md",
    ".rst",
    ".c",
    ".h",
    ".cpp",
    ".hpp",
    ".json",
    ".toml",
    ".yaml",
    ".js",
}


@dataclass(frozen=True, eq=False)
class Samples:
    """Sparse samples in rows (CSR): sample i has ``features[starts[i]:starts[i + 1]]``, each once, ascending.

    starts: int64[n + 1]. features: int64. width: how many features there are. labels: int64[n], or None.
    names: of the samples, or empty.
    """

    starts: Integers
    features: Integers
    width: int
    labels: Integers | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        rows: Iterable[Sequence[int] | Integers],
        width: int,
        labels: Integers | None = None,
        names: Sequence[str] = (),
    ) -> "Samples":
        """Return the samples with these features; repeated ones count once.

        Raises:
            ValueError: a feature that is none of ``width``, or another number of labels than of rows.
        """
        arrays = [np.asarray(row, np.int64) for row in rows]
        numbers = np.repeat(np.arange(len(arrays)), [row.size for row in arrays])
        features = np.concatenate([*arrays, np.zeros(0, np.int64)])
        return cls.of_pairs(numbers, features, len(arrays), width, labels, names)

    @classmethod
    def of_pairs(
        cls,
        rows: Integers,
        features: Integers,
        count: int,
        width: int,
        labels: Integers | None = None,
        names: Sequence[str] = (),
    ) -> "Samples":
        """Return ``count`` samples from pairs of a sample and a feature that it has, in any order."""
        if features.size and not 0 <= features.min() <= features.max() < width:
            raise ValueError(f"features {features.min()} to {features.max()}: there are {width}")
        if labels is not None and labels.size != count:
            raise ValueError(f"{labels.size} labels for {count} samples")
        pairs = np.unique(rows * width + features)
        starts = np.searchsorted(pairs, np.arange(count + 1) * width)
        return cls(starts, pairs % max(width, 1), width, labels, tuple(names))

    def __len__(self) -> int:
        return self.starts.size - 1

    def __getitem__(self, sample: int) -> Integers:
        return self.features[self.starts[sample] : self.starts[sample + 1]]

    def only(self, chosen: Integers) -> "Samples":
        """Return some of the samples, with all features."""
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        places = np.repeat(self.starts[chosen] - starts[:-1], sizes) + np.arange(starts[-1])
        labels = None if self.labels is None else self.labels[chosen]
        names = tuple(self.names[sample] for sample in chosen) if self.names else ()
        return replace(self, starts=starts, features=self.features[places], labels=labels, names=names)

    @property
    def rows(self) -> Integers:
        """Return for each entry of ``features`` the number of its sample."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def columns(self) -> list[Integers]:
        """Return for each feature the samples that have it."""
        order = np.argsort(self.features, kind="stable")
        bounds = np.searchsorted(self.features[order], np.arange(1, self.width))
        return np.split(self.rows[order], bounds)


def text_samples(*folders: Path, lines: int = 0) -> Samples:
    """Return the text files below folders as samples, whose features are the words in them.

    lines: cut files into samples of this many lines; 0: each file is one. Samples without words are left out.
    Of several folders, labels say from which a sample is.

    Raises:
        ValueError: no text below a folder.
    """
    words: dict[bytes, int] = {}
    rows: list[list[int]] = []
    names: list[str] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in _TEXT and p.is_file()):
            content = path.read_bytes().splitlines()
            step = lines or max(len(content), 1)
            for start in range(0, len(content), step):
                found = set(_WORD.findall(b"\n".join(content[start : start + step])))
                if found:
                    rows.append([words.setdefault(word, len(words)) for word in sorted(found)])
                    names.append(f"{path.relative_to(folder)}" + (f":{start + 1}" if lines else ""))
                    labels.append(label)
        if label not in labels:
            raise ValueError(f"{folder}: no text files ({', '.join(sorted(_TEXT))}) with words in them")
    return Samples.of(rows, len(words), np.array(labels) if len(folders) > 1 else None, names)


def svmlight_samples(file: Path) -> Samples:
    """Return the samples of a file in svmlight's format (``label index:value ...``), without the values.

    Raises:
        ValueError: the file is not of that format; says where.
    """
    rows, labels = [], []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        fields = line.partition(b"#")[0].split()
        if not fields:
            continue
        try:
            labels.append(_label(fields[0].decode()))
            rows.append([_index(field.decode()) for field in fields[1:] if not field.startswith(b"qid")])
        except ValueError as error:
            raise ValueError(f"{file}:{number}: not 'label index:value ...': {error}") from None
    if not rows:
        raise ValueError(f"{file}: no samples")
    width = 1 + max((max(row) for row in rows if row), default=0)
    return Samples.of(rows, width, np.unique(labels, return_inverse=True)[1].astype(np.int64))


def _label(text: str) -> float:
    if not np.isfinite(label := float(text)):
        raise ValueError(f"{text} is no label")
    return label


def _index(field: str) -> int:
    if not 0 <= (index := int(field.partition(":")[0])) < _MOST_FEATURES:
        raise ValueError(f"feature {index} is none of 0 to {_MOST_FEATURES - 1}")
    return index


def power_law(
    samples: int,
    width: int,
    *,
    each: int = 40,
    communities: int = 32,
    stray: float = 0.2,
    exponent: float = 1.1,
    seed: int = 0,
) -> Samples:
    """Return made-up samples of known structure.

    Every community has features of its own, drawn with probabilities k^-exponent; a share ``stray`` of each
    sample's features is drawn in the same way from all, where the most frequent ones are the same for
    everybody. Labels are the parity of the community.
    """
    rng = np.random.default_rng(seed)
    weights = np.arange(1, width + 1) ** -exponent
    edges = np.cumsum(weights / weights.sum())
    common = rng.permutation(width)
    community = rng.integers(communities, size=samples)
    own = width // communities
    local_edges = np.cumsum(weights[:own] / weights[:own].sum())
    orders = rng.permutation(width)[: own * communities].reshape(communities, own)
    rows = np.repeat(np.arange(samples), each)
    strays = np.tile(np.arange(each), samples) < np.repeat(rng.binomial(each, stray, samples), each)
    drawn = rng.random(rows.size)
    far = common[np.minimum(np.searchsorted(edges, drawn[strays]), width - 1)]
    near = np.minimum(np.searchsorted(local_edges, drawn[~strays]), own - 1)
    features = np.empty(rows.size, np.int64)
    features[strays], features[~strays] = far, orders[community[rows[~strays]], near]
    return Samples.of_pairs(rows, features, samples, width, (community % 2).astype(np.int64))
