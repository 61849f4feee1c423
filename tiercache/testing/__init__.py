"""What tests of the library and of its users are built from. Ships in the wheel."""

from tiercache.testing.poison import free_storage, poison_free

__all__ = ["free_storage", "poison_free"]
