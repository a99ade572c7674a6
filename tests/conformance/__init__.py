"""What all members of a registry have in common, tested over all of them."""
