"""Ways to fine-tune over a federation, one file each, all with the contract of `base.Method`."""
