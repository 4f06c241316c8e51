"""The Open Inference Protocol (v2), with Triton's extensions: /v2/..., and the same over gRPC (rpc/)."""
