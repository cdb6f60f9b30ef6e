"""The tokend server: one frozen tokenizer file behind gRPC."""

import os

# gRPC reads it when it is imported, so before all other modules. A client whose TLS handshake fails makes gRPC's core
# print at INFO, and what is counted of native output is for panics (docs/adr/0008-native-stderr.md).
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
