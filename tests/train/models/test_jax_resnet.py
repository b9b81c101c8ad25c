"""ResNets in JAX; their numbers of parameters, the test of the entry shows."""


def test_logits_are_float32_whatever_the_network_computes_in(jax_networks):
    assert set(map(tuple, jax_networks["networks"]["shapes"].values())) == {(2, 3, "float32")}


def test_the_last_normalisation_of_a_new_block_is_zero(jax_networks):
    assert jax_networks["networks"]["identity"]
