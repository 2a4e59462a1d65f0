# SPDX-License-Identifier: Apache-2.0
"""A language model of bytes with one LSTM layer."""

from torch import Tensor, nn


class ByteLstm(nn.Module):
    """Embedding, one LSTM layer, linear output: 0.41 million parameters, for bytes."""

    def __init__(self, embedded: int = 64, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, embedded)
        self.lstm = nn.LSTM(embedded, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        """Return scores of each next byte, shape (N, T, 256), of bytes, shape (N, T), int64."""
        states, _ = self.lstm(self.embedding(text))
        scores: Tensor = self.head(states)
        return scores
