"""The tokend server: one frozen tokenizer file behind gRPC."""
