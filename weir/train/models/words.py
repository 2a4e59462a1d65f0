# SPDX-License-Identifier: Apache-2.0
"""Models of words, which touch few rows of a large table in a step: a language model, a bag of words."""

from torch import Tensor, nn


class WordLm(nn.Module):
    """Embedding, one LSTM layer, linear output over the ``outputs`` most frequent words.

    A step touches the embedding rows of the words in its batch and no others: of the 2 million parameters
    of the embedding, most have a zero gradient on every worker, in whole blocks.
    """

    def __init__(self, words: int, outputs: int, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, outputs)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, words: Tensor) -> Tensor:
        """Return scores of the next word, shape (N, T, outputs), after words, shape (N, T), int64."""
        states, _ = self.lstm(self.embedding(words))
        scores: Tensor = self.head(states)
        return scores


class WordBag(nn.Module):
    """Embedding, mean over a line's words, linear output: 1.05 million parameters, nearly all in a table.

    A step touches the rows of the words in its batch and no others.
    """

    def __init__(self, words: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width, mode="mean")
        self.head = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return class scores, shape (N, classes), of lines of words, shape (N, T), int64."""
        scores: Tensor = self.head(self.embedding(words))
        return scores
