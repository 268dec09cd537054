"""Every read and write of object storage."""
