"""Protobuf schemas: the text of a .proto file, or the bytes of a FileDescriptorProto in base64.

``elements`` has the parts of a file, ``text`` reads them from a .proto file, ``descriptor`` from and to bytes of a
FileDescriptorProto, ``writer`` writes them as text, ``names`` resolves the names of types, and ``schema`` is the whole.
"""
