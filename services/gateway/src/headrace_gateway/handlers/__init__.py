"""The requests of Kafka's clients, family by family: each handler translates to our services and back."""
