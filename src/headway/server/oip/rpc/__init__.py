"""The protocol over gRPC: inference.GRPCInferenceService on grpc.aio, in the server's own event loop.

Only what is here imports grpc and protobuf (headway[grpc]); the server imports it where --grpc-port asks for it.
"""
