"""The wire API, generated from `proto/tokend/v1/` by `make generate`; only this file is written by hand.

The messages are in `types_pb2` and `tokenizer_service_pb2`, the stub and servicer in
`tokenizer_service_pb2_grpc`, the error reasons in `error_reason_pb2`. `tokend.Client` is the easier way in.
"""
