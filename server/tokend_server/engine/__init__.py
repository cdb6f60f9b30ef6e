"""Tokenization itself: load, encode, decode. Knows no gRPC, no metrics, no configuration."""
