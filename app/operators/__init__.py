"""The operators; an operator is one file with a constant `OPERATOR`."""
