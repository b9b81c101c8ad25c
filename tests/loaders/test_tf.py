"""The tf.data adapter."""

from tests.support.adapters import AdapterContract


class TestTF(AdapterContract):
    adapter = "tf"
