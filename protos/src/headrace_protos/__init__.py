"""The wire protocol of Headrace: .proto files and the code that was generated from them (``make proto``)."""
