"""Machines reached by ssh, one's own or rented for a run, through OpenSSH's own client."""
