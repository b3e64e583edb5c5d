"""The ssh target: given or rented machines, through OpenSSH's client."""
