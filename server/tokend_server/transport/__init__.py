"""The wire: gRPC servicers, the status table, health and the ops HTTP port."""
