"""Object storage, shared by operator, trainer and command line: s3://, gs:// and file://."""

from isoloss_contract.store import limits
from isoloss_contract.store.backend import Patience
from isoloss_contract.store.circuit import Circuit, time_limit
from isoloss_contract.store.errors import (
    BadRecord,
    BadStoreUri,
    NewerRecord,
    NotFound,
    StoreError,
    StoreNotInstalled,
    StoreRefused,
    StoreUnavailable,
    WriteConflict,
)
from isoloss_contract.store.parsing import parse_json_object, parse_record, parse_record_lines
from isoloss_contract.store.store import Store, check_uri
