"""What is differentiated: the scan primitive, forward-mode-safe layers, cells, the model registry."""

from models.recurrent import GRU, LSTM, RNN, Bidirectional, SimpleRNN, TimeDistributed, make_forward_safe
from models.scan import scan

__all__ = ["GRU", "LSTM", "RNN", "Bidirectional", "SimpleRNN", "TimeDistributed", "make_forward_safe", "scan"]
