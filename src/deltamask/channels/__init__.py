"""theta_k -> bytes -> a sample of Bern(theta_k) at the server: one file each, with a `CHANNEL`."""
