"""The Kafka gateway: Kafka's wire protocol for clients, gRPC to the cluster."""
