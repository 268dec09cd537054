"""What can go wrong with the store. Callers need not know any library's exceptions."""


class StoreError(Exception):
    """Base class of the store's errors; the message names the URI."""


class NotFound(StoreError):
    """There is no object at that URI."""


class BadRecord(StoreError):
    """There is an object, but its content is not what it should be."""


class NewerRecord(StoreError):
    """There is an object of a newer format than this version of isoloss knows."""


class WriteConflict(StoreError):
    """The object is no longer the one that was read: read it again before writing."""


class StoreUnavailable(StoreError):
    """The store did not answer: network, credentials, permissions, missing bucket."""


class StoreRefused(StoreUnavailable):
    """The store answered that it will not do it: permissions, a key that is too long. Waiting does not help."""


class BadStoreUri(StoreError):
    """The URI itself cannot be used."""


class StoreNotInstalled(StoreError):
    """The packages that reach the store are not installed; the message names the extra."""


class Unusable(Exception):
    """Between a backend and `Store`: something is there that must not be read."""


class Refused(Exception):
    """Between a backend and `Store`: the storage answered that it will not do it, and will not next time.

    Denied, or wrong in itself, such as a key that is too long. Other objects may fare better.
    """


class Changed(Exception):
    """Between a backend and `Store`: the condition of a write does not hold."""
