"""Protobuf schemas: the text of a .proto file, or the bytes of a FileDescriptorProto in base64.

============== =======================================================================================================
module         content
============== =======================================================================================================
``elements``   the parts of a file
``text``       reads a .proto file
``descriptor`` reads and writes the bytes of a FileDescriptorProto
``names``      resolves the names of types
``writer``     writes a file as text
``well_known`` the files that need no reference
``schema``     a parsed schema, and its checks
``rules``      further checks of a new schema
============== =======================================================================================================
"""
