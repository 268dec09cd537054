"""Imported before processes are forked: clients of S3 read a megabyte of descriptions once, not one by one."""

from botocore import session
from botocore.loaders import create_loader

_loader = create_loader()
for _name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
    _loader.load_data(_name)
for _kind in ("service-2", "endpoint-rule-set-1"):
    _loader.load_service_model("s3", _kind)
session.create_loader = lambda *_: _loader
