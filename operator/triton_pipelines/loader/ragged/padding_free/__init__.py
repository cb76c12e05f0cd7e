"""Compute only real tokens: run position-wise operators on tokens, without the padding.

Most of an encoder treats each token by itself: projections, feed-forward layers, normalization,
activations, lookups. Only attention and pooling combine positions of a row. The rewritten graph
lays the tokens of all rows end to end, as if they were one row, and runs the position-wise
operators on that. The others get padded matrices, which a Gather makes, and their results are laid
end to end again.
"""
